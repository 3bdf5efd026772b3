"""Gather and scatter as one differentiable pair, and the sums that stay replicated. For use inside `shard_map`.

`gather` casts the shard first and sends it in the compute dtype; its derivative sends the gradient back in the
reduction dtype and leaves the caller's own shard of the sum. Sums run over every data axis: a replica adds to the same
gradient.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jzero.layout import Placement
from jzero.mesh import DATA_AXES, REPLICA_AXIS, SHARD_AXIS


@dataclass(frozen=True)
class Wire:
    """How gradients travel.

    Attributes:
        dtype: in which gradients are summed over the mesh (DeepSpeed key `communication_data_type`).
        n_replicas: size of the mesh's `replica` axis; with 1, no sum over replicas is made.
        n_summed: number of devices whose gradients are added; a 16-bit sum divides by it first so as not to overflow.
    """

    dtype: DTypeLike = jnp.float32
    n_replicas: int = 1
    n_summed: int = 1

    @property
    def divides_first(self) -> bool:
        """Whether gradients are divided before they are summed, and multiplied afterwards."""
        return jnp.dtype(self.dtype).itemsize < 4 and self.n_summed > 1


def gather_leaf(shard: jax.Array, placement: Placement, casts: tuple[DTypeLike, ...] = ()) -> jax.Array:
    """Shard -> full array of the true shape, cast (in order) before it travels."""
    for dtype in casts:
        shard = shard.astype(dtype)
    if placement.dim is None:
        return shard
    if placement.stacked:
        return jax.lax.map(lambda layer: gather_leaf(layer, placement.layer), shard)
    return placement.unpad(jax.lax.all_gather(shard, SHARD_AXIS, axis=placement.dim, tiled=True))


def scatter_leaf(grad: jax.Array, placement: Placement, wire: Wire) -> jax.Array:
    """Local gradient of the true shape -> the sum over all data shards, of which the caller keeps its own shard.

    Floating gradients come back in fp32 whatever they travelled in, complex ones in their own dtype.
    """
    assert placement.dim is not None, "a whole gradient is summed, not scattered"
    if placement.stacked:
        return jax.lax.map(lambda layer: scatter_leaf(layer, placement.layer, wire), grad)
    sent = placement.pad(_to_wire(grad, wire))
    total = jax.lax.psum_scatter(sent, SHARD_AXIS, scatter_dimension=placement.dim, tiled=True)
    if wire.n_replicas > 1:
        total = jax.lax.psum(total, REPLICA_AXIS)
    return _from_wire(total, wire)


def sum_leaves(grads: Sequence[jax.Array], wire: Wire) -> list[jax.Array]:
    """Sums whole gradients over all data shards, in one collective; see `scatter_leaf` for the dtypes."""
    if not grads:
        return []
    totals = jax.lax.psum([_to_wire(g, wire) for g in grads], DATA_AXES)
    return [_from_wire(t, wire) for t in totals]


def _to_wire(grad: jax.Array, wire: Wire) -> jax.Array:
    if not jnp.issubdtype(grad.dtype, jnp.floating):
        return grad
    if wire.divides_first:
        grad = grad.astype(jnp.float32) / wire.n_summed
    return grad.astype(wire.dtype)


def _from_wire(total: jax.Array, wire: Wire) -> jax.Array:
    if not jnp.issubdtype(total.dtype, jnp.floating):
        return total
    total = total.astype(jnp.float32)
    return total * wire.n_summed if wire.divides_first else total


def gather(
    shard: jax.Array,
    placement: Placement,
    wire: Wire,
    casts: tuple[DTypeLike, ...] = (),
    whole: jax.Array | None = None,
) -> jax.Array:
    """Gathers a parameter; the derivative scatters its gradient.

    Args:
        shard: this device's part, of shape `placement.shard_shape`.
        placement: how the parameter lies over the mesh.
        wire: how the gradient travels.
        casts: dtypes the shard passes through before it travels; the last is the dtype of the result.
        whole: the result, if it was gathered before; then only the gradient travels.

    Returns:
        The full array, of shape `placement.shape`.
    """
    return _gather(shard, whole, placement, wire, casts)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _gather(shard, whole, placement, wire, casts):
    return gather_leaf(shard, placement, casts) if whole is None else whole


def _gather_fwd(shard, whole, placement, wire, casts):
    return _gather(shard, whole, placement, wire, casts), jnp.zeros((0,), shard.dtype)


def _gather_bwd(placement, wire, casts, like, grad):
    return scatter_leaf(grad, placement, wire).astype(like.dtype), None


_gather.defvjp(_gather_fwd, _gather_bwd)
