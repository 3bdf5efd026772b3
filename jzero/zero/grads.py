"""The part of a step that ZeRO's collectives are placed in by hand: loss and gradients, inside `shard_map`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jzero.errors import ConfigError
from jzero.flax.model import Mean, Outcome
from jzero.gather import Limits, gather_at_use
from jzero.offload.host.stream import update_in_pieces
from jzero.optim.apply import widened
from jzero.sharding.collectives import GradReduceConfig, gather_leaf, label, scatter_leaf, sum_leaves
from jzero.sharding.host_memory import is_on_host, to_device, to_host
from jzero.sharding.mesh import DATA_AXES, n_data_shards, shard_over_data
from jzero.sharding.placement import Placement, path_name
from jzero.sharding.trees import is_placement, join, split
from jzero.zero.grad_stats import all_finite, first, measure_grads
from jzero.zero.spec import StepSpec
from jzero.zero.stages import Gather, StagePlan


def sharded_grads(spec: StepSpec) -> Callable:
    """Builds the manual part of a step.

    Returns:
        A function of sharded parameters, model state, a batch, a key and the loss scale. It returns the gradients, what
        those on the host are still to be multiplied by, the loss, metrics, the new model state, the health of the
        gradients, and the first micro-batch in which something was not finite. Gradients are averages, except that
        those that go to the host are sums.
    """
    n_micro = spec.config.gradient_accumulation_steps
    n_shards = n_data_shards(spec.mesh)
    averaged_over = n_shards if spec.config.gradient_allreduce_op == "mean" else 1
    placements, _ = split(spec.placements, spec.trainable)
    specs, _ = split(spec.specs, spec.trainable)
    casts, _ = split(spec.casts, spec.trainable)
    accumulate = spec.precision.accumulate
    # fp16 holds a mean over the devices where it would not hold the sum that a gradient scattered at use is.
    spread = n_shards if accumulate == jnp.float16 and spec.plan.scatters_at_use else 1
    summed = jax.tree.map(lambda p: 1 if p.dim is None else spread, placements, is_leaf=is_placement)

    def local(params_sharded, model_state, batch, key_data, scale):
        stored = fetched(spec, params_sharded)
        params_sharded = spec.precision.grad_params(_grad_params(spec, stored))
        params, apply = compute_params(spec, params_sharded, stored, train=True)
        trained, frozen = split(params, spec.trainable)
        key = jax.random.fold_in(jax.random.wrap_key_data(key_data), jax.lax.axis_index(DATA_AXES))

        def objective(trained, model_state, micro_batch, key):
            outcome: Outcome = apply(join(trained, frozen), model_state, spec.precision.inputs(micro_batch), key)
            # Each device's share is brought to the size of a mean before it is scaled, so that fp16 gradients of a sum
            # over tokens stay in range; the weights come back in once the gradients are fp32.
            weight = _mean_weight(outcome.loss, n_shards)
            return outcome.loss.total / _positive(weight) * (scale / n_micro), (outcome, weight)

        def micro_step(model_state, micro_batch, i):
            grad = jax.grad(objective, has_aux=True)
            grads, (outcome, weight) = grad(trained, model_state, micro_batch, jax.random.fold_in(key, i))
            sums = {"loss": outcome.loss, **outcome.metrics}
            return grads, sums, weight, jax.tree.map(as_before, outcome.model_state, model_state)

        def weighted_micro_step(model_state, micro_batch, i):
            grads, sums, weight, model_state = micro_step(model_state, micro_batch, i)
            here = [g for g in jax.tree.leaves(grads) if not is_on_host(g)]
            bad = ~(all_finite(here) & jnp.isfinite(sums["loss"].total))
            if sums["loss"].weight is not None and accumulate == jnp.float16:
                raise ConfigError(
                    "`data_types.grad_accum_dtype` is fp16, in which gradients times the weights that this loss gives "
                    "its micro-batches do not fit; use bf16 or fp32."
                )
            grads = jax.tree.map(
                lambda g, n: g if is_on_host(g) else times(g, weight / n), _in(jnp.float32, grads), summed
            )
            return (_in(accumulate, grads), sums, weight), bad.astype(jnp.float32), model_state

        if n_micro == 1:
            grads, sums, _, new_model_state = micro_step(model_state, jax.tree.map(lambda x: x[0], batch), 0)
            unscale, bad = 1 / (scale * averaged_over), jnp.zeros(1, jnp.float32)
        else:
            totals, bad, new_model_state = _accumulate(weighted_micro_step, trained, model_state, batch, n_micro)
            grads, sums, weight = totals
            grads = jax.tree.map(
                lambda g, n: g if n == 1 or is_on_host(g) else times(_in(jnp.float32, g), jnp.float32(n)), grads, summed
            )
            unscale = n_micro / (scale * _positive(weight) * averaged_over)
        grads = _in(jnp.float32, _reduce_at_end(spec.plan, grads, placements, spec.grad_reduce))
        grads = jax.tree.map(lambda g: g if is_on_host(g) else times(g, unscale), grads)
        averages = averages_of({"nonfinite_micro_batch": Mean(bad), **sums}, n_shards * n_micro)
        micro_batch = first(averages.pop("nonfinite_micro_batch") > 0)
        grad_stats = measure_grads(grads, placements, casts, scale, unscale, spec.offload_plan.piece_elements)
        new_model_state = _agree(new_model_state, model_state)
        return grads, unscale, averages.pop("loss"), averages, new_model_state, grad_stats, micro_batch

    return shard_over_data(local, spec.mesh, (spec.specs, P(), P(None, DATA_AXES), P(), P()), (specs, *[P()] * 6))


def compute_params(spec: StepSpec, params_sharded: Any, stored: Any, *, train: bool) -> tuple[Any, Callable]:
    """The parameters that enter the loss, and the loss that takes them, as the stage has it.

    Args:
        spec: everything fixed.
        params_sharded: what gradients are taken of.
        stored: the same as it lasts on the devices.
        train: whether this is a training step.
    """

    def apply(params, model_state, batch, key):
        return spec.model.apply(params, model_state, batch, key, train)

    placements, casts, wholes, ready = spec.placements, spec.casts, None, None
    if spec.plan.gather is not Gather.AT_USE:

        def gathered(path: Any, placement: Placement, shard: jax.Array, cast: Any) -> jax.Array:
            with label("gather", path_name(path), "the step"):
                return gather_leaf(shard, placement, cast)

        wholes = jax.tree_util.tree_map_with_path(gathered, placements, params_sharded, casts, is_leaf=is_placement)
        if not spec.plan.scatters_at_use:
            # What is differentiated are the whole parameters; their gradients stay on the device until the end.
            params_sharded, wholes = wholes, None
            placements = jax.tree.map(lambda p: Placement(p.shape), placements, is_leaf=is_placement)
            casts = jax.tree.map(lambda _: (), placements, is_leaf=is_placement)
    elif spec.offload_plan.in_files or (spec.offload_plan.is_used and not spec.offload_plan.at_use):
        # Fetched from the host for the whole step: what stays is the copy that computes. With files that is what lasts.
        # The gradient of a whole leaf is taken of what is used, so that it must be the leaf itself.
        ready = jax.tree.map(
            lambda place, moved, lasts, cast: (
                (lasts if lasts.dtype == cast[-1] else lasts.astype(cast[-1]))
                if moved and cast and place.dim is not None
                else None
            ),
            spec.placements,
            _moved(spec),
            stored,
            casts,
            is_leaf=is_placement,
        )
    zero = spec.config.zero_optimization
    limits = Limits(zero.stage3_prefetch_bucket_size, zero.stage3_max_live_parameters, zero.stage3_max_reuse_distance)
    return params_sharded, gather_at_use(
        apply,
        placements,
        spec.grad_reduce,
        casts=casts,
        trainable=spec.trainable,
        wholes=wholes,
        ready=ready,
        limits=limits if spec.plan.gather is Gather.AT_USE else None,
    )


def fetched(spec: StepSpec, params_sharded: Any) -> Any:
    """Parameters from the host, for the whole step unless each use fetches for itself."""
    return params_sharded if spec.offload_plan.at_use else jax.tree.map(to_device, params_sharded)


def _grad_params(spec: StepSpec, params_sharded: Any) -> Any:
    """What gradients are taken of: with the master copy in files a stand-in of its dtype, which is never read."""
    if not spec.offload_plan.in_files:
        return params_sharded

    def stand_in(x: jax.Array, moved: bool, cast: tuple) -> jax.Array:
        if not (moved and cast):
            return x
        zeros = jnp.zeros(x.shape, spec.precision.param_dtype)
        return to_host(widened(zeros)) if is_on_host(x) else zeros

    return jax.tree.map(stand_in, params_sharded, _moved(spec), spec.casts)


def _moved(spec: StepSpec) -> Any:
    """Pytree of bool like the parameters: whether the optimizer keeps its copy away from the devices."""
    return jax.tree.map(lambda on_host, trained: on_host and trained, spec.offload_plan.on_host, spec.trainable)


def _accumulate(micro_step: Callable, trained: Any, model_state: Any, batch: Any, n_micro: int) -> Any:
    """Runs the micro-batches one after the other: adds up the first thing that each gives, and lists the second.

    The first thing is gradients like `trained`, sums, and a weight, by which gradients on the host are still to be
    multiplied.
    """
    batch = (batch, jnp.arange(n_micro, dtype=jnp.int32))
    shapes, *_ = jax.eval_shape(micro_step, model_state, *jax.tree.map(lambda x: x[0], batch))
    grads, *others = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    grads = jax.tree.map(lambda z, p: to_host(z) if is_on_host(p) else z, grads, trained)

    def add(total: jax.Array, grad: jax.Array, weight: jax.Array) -> jax.Array:
        if not is_on_host(total):
            return total + grad
        return update_in_pieces(lambda t, g: [t + times(g, weight)], [total], [grad])[0]

    def body(carry, xs):
        model_state, (totals, *other_totals) = carry
        (grads, *others), noted, model_state = micro_step(model_state, *xs)
        totals = jax.tree.map(lambda t, g: add(t, g, others[-1]), totals, grads)
        return (model_state, (totals, *jax.tree.map(jnp.add, other_totals, others))), noted

    (model_state, totals), noted = jax.lax.scan(body, (model_state, (grads, *others)), batch)
    return totals, noted, model_state


def _in(dtype: Any, grads: Any) -> Any:
    """Floating gradients in another dtype; on the host they stay as they are."""

    def cast(g: jax.Array) -> jax.Array:
        return g.astype(dtype) if jnp.issubdtype(g.dtype, jnp.floating) and not is_on_host(g) else g

    return jax.tree.map(cast, grads)


def _reduce_at_end(plan: StagePlan, grads: Any, placements: Any, grad_reduce: GradReduceConfig) -> Any:
    """Sums what is still the device's own: every gradient at stages 0 and 1, those of whole leaves at 2 and 3."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(grads)
    flat = treedef.flatten_up_to(placements)
    whole = iter(sum_leaves([g for (_, g), p in zip(paths, flat, strict=True) if p.dim is None], grad_reduce))
    reduced = []
    for (path, grad), placement in zip(paths, flat, strict=True):
        if placement.dim is None:
            reduced.append(next(whole))
        elif plan.scatters_at_use:
            reduced.append(grad)
        else:
            with label("scatter", path_name(path), "the step"):
                reduced.append(scatter_leaf(grad, placement, grad_reduce))
    return treedef.unflatten(reduced)


def _mean_weight(loss: Mean, n_shards: int) -> jax.Array:
    """The average weight of a device's share of this micro-batch; 1 where all count alike."""
    if loss.weight is None:
        return jnp.ones((), jnp.float32)
    return jax.lax.stop_gradient(jax.lax.psum(loss.weight, DATA_AXES)) / n_shards


def _positive(weight: jax.Array) -> jax.Array:
    """A weight that can be divided by: nothing at all counts as one, so that an empty batch has loss and gradient 0."""
    return jnp.where(weight > 0, weight, 1.0)


def averages_of(sums: dict[str, Mean], count: int) -> dict[str, jax.Array]:
    """Local sums -> means over all devices, in one collective."""
    totals = jax.lax.psum(sums, DATA_AXES)
    return {name: m.total / (count if m.weight is None else _positive(m.weight)) for name, m in totals.items()}


def _agree(model_state: Any, before: Any) -> Any:
    """Averages model state that a step has changed, so that it stays the same on every device."""

    def agree(new, old):
        if new is old or not jnp.issubdtype(new.dtype, jnp.inexact):
            return new
        return as_before(jax.lax.pmean(widened(new), DATA_AXES), new)

    return jax.tree.map(agree, model_state, before)


def times(grads: Any, factor: jax.Array) -> Any:
    """Gradients of any dtype, complex ones included, times one real number."""
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)


def as_before(new: jax.Array, old: jax.Array) -> jax.Array:
    """Model state in the dtype it lasts in, whatever dtype the model computed it in."""
    return new if new.dtype == old.dtype else new.astype(old.dtype)
