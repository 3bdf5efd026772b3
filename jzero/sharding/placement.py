"""Which dimension of each parameter is sharded: one pure function from shapes to placements.

Dimension 0 is preferred because a gather there is free of copies. A dimension that a `scan` walks over is never
sharded, since each iteration would then live on one device only. A large leaf that nothing divides is padded; a small
one stays replicated.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jax.tree_util import KeyPath

from jzero.sharding.mesh import REPLICA_AXIS, SHARD_AXIS

SMALL_LEAF_ELEMENTS = 16_384
"""Up to this size a copy on each device costs less than a collective of its own; such a leaf is never padded either."""


@dataclass(frozen=True)
class Placement:
    """How one array lies over the `shard` axis, or over `shard` and `replica` together.

    Attributes:
        shape: the true shape, as the model knows it.
        dim: the sharded dimension, or None for a replicated array.
        n_shards: the number of equal parts along `dim`.
        stacked: dimension 0 counts layers that a loop walks over; collectives then take one layer at a time, since a
            gather along a later dimension would need a second copy of the whole stack to bring it into order.
        n_groups: into how many of its parts each part along `shard` is divided once more, over `replica`: the groups
            of devices of two-level sharding; 1 where every group holds all parts.
        multiple: what the padded length is a multiple of, if not of `n_shards`.
    """

    shape: tuple[int, ...]
    dim: int | None = None
    n_shards: int = 1
    stacked: bool = False
    n_groups: int = 1
    multiple: int | None = None

    @property
    def layer(self) -> "Placement":
        """The placement of one slice along dimension 0."""
        return replace(self, shape=self.shape[1:], dim=None if self.dim is None else self.dim - 1, stacked=False)

    @property
    def in_group(self) -> "Placement":
        """How the same array lies over the devices of one group, once its parts have been gathered over the groups.

        >>> place((8, 4), 8, n_groups=4).in_group.shard_shape
        (4, 4)
        """
        if self.n_groups == 1:
            return self
        return replace(self, n_shards=self.n_shards // self.n_groups, n_groups=1, multiple=self.n_shards)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it is divided over, the major one first."""
        if self.dim is None:
            return ()
        # In this order the parts of one group are neighbours, and neither hop has to transpose anything.
        return (SHARD_AXIS,) if self.n_groups == 1 else (SHARD_AXIS, REPLICA_AXIS)

    @property
    def padding(self) -> int:
        """Rows of zeros appended along `dim` so that it divides evenly."""
        return 0 if self.dim is None else -self.shape[self.dim] % (self.multiple or self.n_shards)

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
        if self.dim is None:
            return PartitionSpec()
        return PartitionSpec(*[None] * self.dim, self.axes[0] if self.n_groups == 1 else self.axes)

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
    n_groups: int = 1,
) -> Placement:
    """Chooses the placement of one array.

    Args:
        shape: the true shape.
        n_shards: the number of parts: the size of the mesh's `shard` axis, at two levels that of `replica` times it.
        replicate_below: leaves of at most this many elements stay replicated
            (DeepSpeed key `stage3_param_persistence_threshold`).
        unshardable_dims: dimensions that must stay whole, such as the one a `scan` walks over.
        shard_single: divide over a single shard too: a parameter that lives on the host is fetched at use like one that
            lives on several devices.
        n_groups: at two levels, the size of the mesh's `replica` axis; see `Placement`.

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
            return Placement(shape, d, n_shards, stacked, n_groups)
    if size <= SMALL_LEAF_ELEMENTS:
        return whole
    every = (Placement(shape, d, n_shards, stacked, n_groups) for d in dims)
    best = min(every, key=lambda p: math.prod(p.padded_shape))
    return best if math.prod(best.shard_shape) < size else whole


def place_all(
    params: Mapping | list | tuple | object,
    n_shards: int,
    *,
    replicate_below: int = 0,
    unshardable_dims: Mapping[int, Collection[int]] | None = None,
    shard_single: bool = False,
    n_groups: int = 1,
):
    """Chooses the placement of every leaf of a parameter tree.

    Args:
        params: a pytree of arrays or `jax.ShapeDtypeStruct`s with true shapes.
        n_shards: see `place`.
        replicate_below: see `place`.
        unshardable_dims: for the index of a leaf (in flattening order), the dimensions that must stay whole.
        shard_single: see `place`.
        n_groups: see `place`.

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
            n_groups=n_groups,
        )
        for i, x in enumerate(leaves)
    ]
    return treedef.unflatten(placements)
