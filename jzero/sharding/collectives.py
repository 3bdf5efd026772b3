"""Gather, scatter, and the sums that stay replicated. For use inside `shard_map`.

A gather casts the shard first and sends it in the compute dtype; a scatter sends the gradient back in the reduction
dtype and leaves the caller's own shard of the sum. Both run along `shard`, inside a group of devices; what crosses
groups, along `replica`, does so once a step.
"""

import itertools
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jzero.sharding.mesh import DATA_AXES, REPLICA_AXIS, SHARD_AXIS
from jzero.sharding.placement import Placement

PIECE_BYTES = 256 * 2**20
"""A gradient that is widened to be sent is sent in pieces of at most this size; only token embeddings are larger."""


@dataclass(frozen=True)
class GradReduceConfig:
    """How gradients are summed over the devices.

    Attributes:
        dtype: in which gradients are summed over the mesh (DeepSpeed key `communication_data_type`).
        n_groups: size of the mesh's `replica` axis: groups of devices whose sums are still to be added at the end of
            the step.
        n_summed: number of devices whose gradients are added.
        prescale: gradients are divided by that number before they are added (DeepSpeed key `prescale_gradients`).
        predivide: what they are divided by instead, if not 1 (DeepSpeed key `gradient_predivide_factor`).
        rounded: gradients are sent in fp32, rounded to `dtype` before and after the sum. For bf16 on CPU devices: XLA
            sums in fp32 there anyway, but aborts over its own cast where `shard_map` leaves an axis to the compiler.
        pipelined: loops gather and scatter beside another layer's products (DeepSpeed key `overlap_comm`); see
            `jzero.gather.schedule.loop_pipeline`.
    """

    dtype: DTypeLike = jnp.float32
    n_groups: int = 1
    n_summed: int = 1
    prescale: bool = False
    predivide: float = 1.0
    rounded: bool = False
    pipelined: bool = False

    @property
    def divisor(self) -> float:
        """What gradients are divided by before they are summed, and multiplied by afterwards.

        A 16-bit sum would overflow, so it is prescaled whether or not that is asked for; a factor that is given is
        taken as it is, in every dtype.

        Example:
            >>> GradReduceConfig(jnp.float32, n_summed=8).divisor, GradReduceConfig(jnp.bfloat16, n_summed=8).divisor
            (1, 8)
        """
        if self.predivide != 1:
            return self.predivide
        return self.n_summed if self.prescale or jnp.dtype(self.dtype).itemsize < 4 else 1


def label(kind: str, name: str, use: str = "") -> AbstractContextManager[object]:
    """A scope that names the parameter a collective carries, in jaxprs, in compiled programs and in profiles.

    Args:
        kind: "gather" or "scatter".
        name: of the parameter.
        use: the primitive that needs it.
    """
    return jax.named_scope(f"{kind}[{name}{f' for {use}' if use else ''}]")


def gather_leaf(shard: jax.Array, placement: Placement, casts: tuple[DTypeLike, ...] = ()) -> jax.Array:
    """Shard -> full array of the true shape, cast (in order) before it is sent."""
    for dtype in casts:
        shard = shard.astype(dtype)
    if placement.dim is None:
        return shard
    if placement.stacked:
        return jax.lax.map(lambda layer: gather_leaf(layer, placement.layer), shard)
    return placement.unpad(jax.lax.all_gather(shard, SHARD_AXIS, axis=placement.dim, tiled=True))


def scatter_leaf(grad: jax.Array, placement: Placement, grad_reduce: GradReduceConfig) -> jax.Array:
    """Local gradient of the true shape -> the sum over the group of devices on `shard`, of which the caller keeps its
    own shard; see `reduce_over_groups` for the rest.

    Floating gradients come back in fp32 whatever they were sent in, complex ones in their own dtype.
    """
    assert placement.dim is not None, "a whole gradient is summed, not scattered"
    if placement.stacked:
        return jax.lax.map(lambda layer: scatter_leaf(layer, placement.layer, grad_reduce), grad)
    across, bounds = _pieces(grad, placement, grad_reduce)
    scattered: list[jax.Array] = []
    for start, end in itertools.pairwise(bounds):
        if scattered:  # or the compiler would widen all pieces in one go
            grad, scattered[-1] = jax.lax.optimization_barrier((grad, scattered[-1]))
        sent = placement.pad(_to_reduce_dtype(jax.lax.slice_in_dim(grad, start, end, axis=across), grad_reduce))
        total = jax.lax.psum_scatter(sent, SHARD_AXIS, scatter_dimension=placement.dim, tiled=True)
        scattered.append(_from_reduce_dtype(total, grad_reduce))
    return scattered[0] if len(scattered) == 1 else jnp.concatenate(scattered, axis=across)


def gather_over_groups(shard: jax.Array, placement: Placement) -> jax.Array:
    """This device's shard at two levels -> the shard of its group, by a gather over `replica`."""
    assert placement.dim is not None, "what is whole lies in every group"
    return jax.lax.all_gather(shard, REPLICA_AXIS, axis=placement.dim, tiled=True)


def reduce_over_groups(total: jax.Array, placement: Placement, grad_reduce: GradReduceConfig) -> jax.Array:
    """The sum over a group that `scatter_leaf` left -> over all devices: this device's own part of it at two levels;
    where every group holds all parts, the whole part. Once a step; see `scatter_leaf` for the dtypes.
    """
    if grad_reduce.n_groups == 1 or placement.dim is None:
        return total
    sent = _to_reduce_dtype(total, grad_reduce)
    if placement.n_groups == 1:
        return _from_reduce_dtype(jax.lax.psum(sent, REPLICA_AXIS), grad_reduce)
    scattered = jax.lax.psum_scatter(sent, REPLICA_AXIS, scatter_dimension=placement.dim, tiled=True)
    return _from_reduce_dtype(scattered, grad_reduce)


def _pieces(grad: jax.Array, placement: Placement, grad_reduce: GradReduceConfig) -> tuple[int, list[int]]:
    """Where to cut a gradient that is widened to be sent, so that only `PIECE_BYTES` of it are wide at a time.

    The cut runs across the sharded dimension, which leaves every device the same shard of each piece.

    Returns:
        The dimension to cut, and the bounds of the pieces in it.
    """
    widths = [0 if d == placement.dim else n for d, n in enumerate(grad.shape)]
    across = int(np.argmax(widths))
    width = widths[across]
    wide = grad.size * jnp.dtype(grad_reduce.dtype).itemsize
    if grad.dtype == grad_reduce.dtype or wide <= PIECE_BYTES or width <= 1:
        return across, [0, grad.shape[across]]
    n_pieces = -(-width // max(PIECE_BYTES // (wide // width), 1))
    return across, [i * width // n_pieces for i in range(n_pieces + 1)]


def sum_leaves(grads: Sequence[jax.Array], grad_reduce: GradReduceConfig) -> list[jax.Array]:
    """Sums whole gradients over all data shards, in one collective; see `scatter_leaf` for the dtypes."""
    if not grads:
        return []
    totals = jax.lax.psum([_to_reduce_dtype(g, grad_reduce) for g in grads], DATA_AXES)
    return [_from_reduce_dtype(t, grad_reduce) for t in totals]


def _to_reduce_dtype(grad: jax.Array, grad_reduce: GradReduceConfig) -> jax.Array:
    if not jnp.issubdtype(grad.dtype, jnp.floating):
        return grad
    if grad_reduce.divisor != 1:
        grad = grad.astype(jnp.float32) / grad_reduce.divisor
    return _rounded(grad, grad_reduce.dtype) if grad_reduce.rounded else grad.astype(grad_reduce.dtype)


def _from_reduce_dtype(total: jax.Array, grad_reduce: GradReduceConfig) -> jax.Array:
    if not jnp.issubdtype(total.dtype, jnp.floating):
        return total
    total = _rounded(total, grad_reduce.dtype) if grad_reduce.rounded else total.astype(jnp.float32)
    return total * grad_reduce.divisor if grad_reduce.divisor != 1 else total


def _rounded(x: jax.Array, dtype: DTypeLike) -> jax.Array:
    """The fp32 numbers that a narrower dtype would keep; XLA may drop a cast there and back, but not this."""
    kept = jnp.finfo(dtype)
    return jax.lax.reduce_precision(x.astype(jnp.float32), kept.nexp, kept.nmant)
