"""Which dimension of each parameter is sharded: one pure function from shapes to placements.

Dimension 0 is preferred because a gather there is free of copies. A dimension that a `scan` walks over is never
sharded, since each iteration would then live on one device only. A large leaf that nothing divides is padded; a small
one stays replicated.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import KeyPath

from jzero.sharding.mesh import SHARD_AXIS

SMALL_LEAF_ELEMENTS = 16_384
"""Up to this size a copy on each device costs less than a collective of its own; such a leaf is never padded either."""


@dataclass(frozen=True)
class Placement:
    """How one array lies over the `shard` axis.

    Attributes:
        shape: the true shape, as the model knows it.
        dim: the sharded dimension, or None for a replicated array.
        n_shards: the number of equal parts along `dim`.
        stacked: dimension 0 counts layers that a loop walks over; collectives then take one layer at a time, since a
            gather along a later dimension would need a second copy of the whole stack to bring it into order.
    """

    shape: tuple[int, ...]
    dim: int | None = None
    n_shards: int = 1
    stacked: bool = False

    @property
    def layer(self) -> "Placement":
        """The placement of one slice along dimension 0."""
        return Placement(self.shape[1:], None if self.dim is None else self.dim - 1, self.n_shards)

    @property
    def padding(self) -> int:
        """Rows of zeros appended along `dim` so that it divides evenly."""
        return 0 if self.dim is None else -self.shape[self.dim] % self.n_shards

    @property
    def padded_shape(self) -> tuple[int, ...]:
        """The global shape of the stored array."""
        return tuple(n + self.padding if d == self.dim else n for d, n in enumerate(self.shape))

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of the part that one device holds."""
        return tuple(n // self.n_shards if d == self.dim else n for d, n in enumerate(self.padded_shape))

    @property
    def spec(self) -> PartitionSpec:
        """The partition of the stored array over the mesh."""
        return PartitionSpec() if self.dim is None else PartitionSpec(*[None] * self.dim, SHARD_AXIS)

    def pad(self, x: jax.Array) -> jax.Array:
        """Appends the zeros: true shape -> padded shape."""
        if not self.padding:
            return x
        return jnp.pad(x, [(0, self.padding if d == self.dim else 0) for d in range(x.ndim)])

    def unpad(self, x: jax.Array) -> jax.Array:
        """Drops the zeros: padded shape -> true shape."""
        return (
            jax.lax.slice_in_dim(x, 0, self.shape[self.dim], axis=self.dim)
            if self.dim is not None and self.padding
            else x
        )


def path_name(path: KeyPath) -> str:
    """The dotted name of a leaf, as error messages and tables show it."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def place(
    shape: tuple[int, ...],
    n_shards: int,
    *,
    replicate_below: int = 0,
    unshardable_dims: Collection[int] = (),
    shard_single: bool = False,
) -> Placement:
    """Chooses the placement of one array.

    Args:
        shape: the true shape.
        n_shards: the size of the mesh's `shard` axis.
        replicate_below: leaves of at most this many elements stay replicated
            (DeepSpeed key `stage3_param_persistence_threshold`).
        unshardable_dims: dimensions that must stay whole, such as the one a `scan` walks over.
        shard_single: divide over a single shard too: a parameter that lives on the host is fetched at use like one that
            lives on several devices.

    Returns:
        The first dimension that divides evenly; failing that the one that needs the least padding, in proportion, for a
        large leaf; failing that a replicated placement.

    Example:
        >>> place((50257, 768), 64).dim, place((50257, 771), 64).padded_shape, place((3,), 64).dim
        (1, (50304, 771), None)
    """
    size = math.prod(shape)
    whole = Placement(shape)
    dims = [d for d in range(len(shape)) if d not in unshardable_dims]
    if (n_shards == 1 and not shard_single) or size <= replicate_below or size == 0 or not dims:
        return whole
    stacked = 0 in unshardable_dims
    for d in dims:
        if shape[d] % n_shards == 0:
            return Placement(shape, d, n_shards, stacked)
    if size <= SMALL_LEAF_ELEMENTS:
        return whole
    best = min((Placement(shape, d, n_shards, stacked) for d in dims), key=lambda p: math.prod(p.padded_shape))
    return best if math.prod(best.shard_shape) < size else whole


def place_all(
    params: Mapping | list | tuple | object,
    n_shards: int,
    *,
    replicate_below: int = 0,
    unshardable_dims: Mapping[int, Collection[int]] | None = None,
    shard_single: bool = False,
):
    """Chooses the placement of every leaf of a parameter tree.

    Args:
        params: a pytree of arrays or `jax.ShapeDtypeStruct`s with true shapes.
        n_shards: the size of the mesh's `shard` axis.
        replicate_below: see `place`.
        unshardable_dims: for the index of a leaf (in flattening order), the dimensions that must stay whole.
        shard_single: see `place`.

    Returns:
        A pytree of `Placement`s with the structure of `params`.
    """
    leaves, treedef = jax.tree.flatten(params)
    unshardable_dims = unshardable_dims or {}
    placements = [
        place(
            tuple(x.shape),
            n_shards,
            replicate_below=replicate_below,
            unshardable_dims=unshardable_dims.get(i, ()),
            shard_single=shard_single,
        )
        for i, x in enumerate(leaves)
    ]
    return treedef.unflatten(placements)
