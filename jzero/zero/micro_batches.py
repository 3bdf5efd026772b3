"""Gradients of one micro-batch after the other, added up: for use inside `shard_map`, on one device's rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jzero.base.types import Batch, Grads, ModelState, Params, Placements, PyTree
from jzero.errors import ConfigError
from jzero.flax.mean import Mean
from jzero.flax.model import Outcome
from jzero.gather import GradSums
from jzero.offload.host.stream import update_in_pieces
from jzero.optim.clipping import times
from jzero.sharding.host_memory import is_on_host, to_host
from jzero.sharding.mesh import DATA_AXES, n_data_shards
from jzero.sharding.trees import is_placement, split
from jzero.zero.grad_stats import all_finite
from jzero.zero.spec import StepSpec


@dataclass(frozen=True)
class Accumulation:
    """How gradients are added up.

    Attributes:
        n_micro: micro-batches in a step.
        n_shards: devices that take different rows.
        averaged_over: by how many devices a sum over them is divided.
        dtype: in which gradients are added up.
        divisors: pytree of int like the trainable parameters: by what a gradient is divided before it is added up, and
            multiplied after; above 1 only for sharded leaves added up in fp16 at stages 2 and 3.
        numbers: pytree of int like the trainable parameters: which of all parameters each is, in flattening order.
        sums: parameters whose gradients may be added up inside of the backward pass; None for none of them.
    """

    n_micro: int
    n_shards: int
    averaged_over: int
    dtype: DTypeLike
    divisors: PyTree
    numbers: PyTree
    sums: GradSums | None = None


class Accumulated(NamedTuple):
    """Gradients of a batch, and what comes with them.

    Attributes:
        grads: not reduced at stages 0 and 1, scattered sums over a group of devices at 2 and 3.
        sums: the loss and metrics, this device's part.
        unscale: `f32[]`, what gradients are to be multiplied by to be those of the mean loss.
        bad: `f32[n_micro]`, 1 for a micro-batch in which something was not finite; 0 if it is the only one.
        model_state: the new one.
    """

    grads: Grads
    sums: dict[str, Mean]
    unscale: jax.Array
    bad: jax.Array
    model_state: ModelState


class MicroBatch(NamedTuple):
    """Gradients of one micro-batch; `weight` is the average weight of a device's share of it."""

    grads: Grads
    sums: dict[str, Mean]
    weight: jax.Array
    model_state: ModelState


def accumulation_of(spec: StepSpec, placements: Placements) -> Accumulation:
    """Reads the rule from a run; `placements` are those of the trainable parameters."""
    n_shards, dtype = n_data_shards(spec.mesh), spec.precision.accumulate
    # A gradient scattered at use is a sum over a group of devices, which can overflow fp16; its mean does not.
    spread = spec.mesh.shape["shard"] if dtype == jnp.float16 and spec.plan.scatters_at_use else 1
    divisors = jax.tree.map(lambda p: 1 if p.dim is None else spread, placements, is_leaf=is_placement)
    averaged_over = n_shards if spec.config.gradient_allreduce_op == "mean" else 1
    leaves, treedef = jax.tree.flatten(spec.trainable)
    numbers, _ = split(treedef.unflatten(range(len(leaves))), spec.trainable)
    return Accumulation(spec.config.gradient_accumulation_steps, n_shards, averaged_over, dtype, divisors, numbers)


def accumulated_grads(
    how: Accumulation,
    loss: Callable[[Params, ModelState, Batch, jax.Array], Outcome],
    trained: Params,
    model_state: ModelState,
    batch: Batch,
    key: jax.Array,
    scale: jax.Array,
) -> Accumulated:
    """Differentiates the loss of every micro-batch.

    Args:
        how: the rule.
        loss: of the trainable parameters, model state, a micro-batch and a key.
        trained: the trainable parameters.
        model_state: the state before the first micro-batch.
        batch: leaves `[n_micro, rows, ...]`.
        key: from which each micro-batch derives its own.
        scale: `f32[]`, the loss scale.
    """

    def objective(trained, model_state, micro_batch, key):
        outcome = loss(trained, model_state, micro_batch, key)
        # Each device's share is brought to the size of a mean before it is scaled, so that fp16 gradients of a sum
        # over tokens stay in range; the weights come back in once the gradients are fp32.
        weight = _mean_weight(outcome.loss, how.n_shards)
        return outcome.loss.total / positive(weight) * (scale / how.n_micro), (outcome, weight)

    def micro_step(trained, model_state, micro_batch, i):
        grad = jax.grad(objective, has_aux=True)
        grads, (outcome, weight) = grad(trained, model_state, micro_batch, jax.random.fold_in(key, i))
        sums = {"loss": outcome.loss, **outcome.metrics}
        return MicroBatch(grads, sums, weight, jax.tree.map(as_before, outcome.model_state, model_state))

    if how.n_micro == 1:
        only = micro_step(trained, model_state, jax.tree.map(lambda x: x[0], batch), 0)
        bad = jnp.zeros(1, jnp.float32)
        return Accumulated(only.grads, only.sums, 1 / (scale * how.averaged_over), bad, only.model_state)
    return _summed(how, micro_step, trained, model_state, batch, scale)


def _summed(
    how: Accumulation, micro_step: Callable, trained: Params, model_state: ModelState, batch: Batch, scale: jax.Array
) -> Accumulated:
    """Several micro-batches, each with its weight."""

    def weighted(given, model_state, micro_batch, i):
        grads, sums, weight, model_state = micro_step(given, model_state, micro_batch, i)
        here = [g for g in jax.tree.leaves(grads) if not is_on_host(g)]
        bad = ~(all_finite(here) & jnp.isfinite(sums["loss"].total))
        if sums["loss"].weight is not None and how.dtype == jnp.float16:
            raise ConfigError(
                "`data_types.grad_accum_dtype` is fp16, in which gradients times the weights that this loss gives "
                "its micro-batches do not fit; use bf16 or fp32."
            )
        added = _is_added(how)
        grads = jax.tree.map(
            lambda g, n, is_sum: g if is_sum or is_on_host(g) else times(g, weight / n),
            in_dtype(jnp.float32, grads),
            how.divisors,
            added,
        )
        return (in_dtype(how.dtype, grads), sums, weight), bad.astype(jnp.float32), model_state

    totals, bad, new_model_state = _accumulate(how, weighted, trained, model_state, batch)
    grads, sums, weight = totals
    grads = jax.tree.map(
        lambda g, n: g if n == 1 or is_on_host(g) else times(in_dtype(jnp.float32, g), jnp.float32(n)),
        grads,
        how.divisors,
    )
    unscale = how.n_micro / (scale * positive(weight) * how.averaged_over)
    return Accumulated(grads, sums, unscale, bad, new_model_state)


def _is_added(how: Accumulation) -> PyTree:
    """Pytree of bool like the trainable parameters: whose gradients, as last traced, are sums already."""
    return jax.tree.map(lambda i: how.sums is not None and i in how.sums.added, how.numbers)


def _accumulate(
    how: Accumulation, micro_step: Callable, trained: Params, model_state: ModelState, batch: Batch
) -> tuple[PyTree, jax.Array, ModelState]:
    """Runs the micro-batches one after the other: adds up the first thing that each gives, and lists the second.

    The first thing is gradients like `trained`, sums, and a weight, by which gradients on the host are still to be
    multiplied.
    """
    batch = (batch, jnp.arange(how.n_micro, dtype=jnp.int32))
    added_inside = how.sums.leaves if how.sums else frozenset()
    _start(how, frozenset())
    shapes, *_ = jax.eval_shape(micro_step, trained, model_state, *jax.tree.map(lambda x: x[0], batch))
    if shapes[1]["loss"].weight is not None:
        added_inside = frozenset()
    grads, *others = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    grads = jax.tree.map(lambda z, p: to_host(z) if is_on_host(p) else z, grads, trained)

    def add(total: jax.Array, grad: jax.Array, weight: jax.Array) -> jax.Array:
        if not is_on_host(total):
            return total + grad
        return update_in_pieces(lambda t, g: [t + times(g, weight)], [total], [grad])[0]

    def body(carry, xs):
        model_state, (totals, *other_totals) = carry
        _start(how, added_inside)
        given = jax.tree.map(lambda i, t, p: t if i in added_inside else p, how.numbers, totals, trained)
        (grads, *others), noted, model_state = micro_step(given, model_state, *xs)
        add_one = lambda t, g, is_sum: g if is_sum else add(t, g, others[-1])
        totals = jax.tree.map(add_one, totals, grads, _is_added(how))
        return (model_state, (totals, *jax.tree.map(jnp.add, other_totals, others))), noted

    (model_state, totals), noted = jax.lax.scan(body, (model_state, (grads, *others)), batch)
    return totals, noted, model_state


def _start(how: Accumulation, leaves: frozenset[int]) -> None:
    """Before a micro-batch is traced: which gradients may be added to what is given in their parameters' place."""
    if how.sums is not None:
        how.sums.leaves = leaves
        how.sums.added.clear()


def in_dtype(dtype: DTypeLike, grads: Grads) -> Grads:
    """Floating gradients in another dtype; on the host they stay as they are."""

    def cast(g: jax.Array) -> jax.Array:
        return g.astype(dtype) if jnp.issubdtype(g.dtype, jnp.floating) and not is_on_host(g) else g

    return jax.tree.map(cast, grads)


def _mean_weight(loss: Mean, n_shards: int) -> jax.Array:
    """The average weight of a device's share of this micro-batch; 1 where all count alike."""
    if loss.weight is None:
        return jnp.ones((), jnp.float32)
    return jax.lax.stop_gradient(jax.lax.psum(loss.weight, DATA_AXES)) / n_shards


def positive(weight: jax.Array) -> jax.Array:
    """A weight that can be divided by: nothing at all counts as one, so that an empty batch has loss and gradient 0."""
    return jnp.where(weight > 0, weight, 1.0)


def as_before(new: jax.Array, old: jax.Array) -> jax.Array:
    """Model state in the dtype it lasts in, whatever dtype the model computed it in."""
    return new if new.dtype == old.dtype else new.astype(old.dtype)
