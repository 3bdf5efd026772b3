"""The training step and the evaluation step as pure functions.

A training step is `optimizer(shard_map(loss and gradients))`: ZeRO's collectives are placed by hand inside `shard_map`,
over the data axes; the update runs outside it, on global arrays, so that any optax transformation sees whole
parameters.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jzero.collectives import Wire, gather_leaf, label, scatter_leaf, sum_leaves
from jzero.config import Config
from jzero.gather import Limits, gather_at_use
from jzero.layout import Placement, path_name
from jzero.loss_scale import update_loss_scale
from jzero.mesh import DATA_AXES, n_data_shards
from jzero.model import Mean, Model, Outcome
from jzero.precision import Precision
from jzero.stages import Gather, StagePlan
from jzero.state import TrainState, is_placement, join, pad, split, unpad


@dataclass(frozen=True)
class Recipe:
    """Everything about a run that is fixed before it starts.

    Attributes:
        model: the loss as a pure function of parameters.
        config: the resolved configuration.
        plan: what the ZeRO stage means.
        precision: the dtypes.
        mesh: the devices.
        placements: pytree of `Placement` like the parameters.
        trainable: pytree of bool like the parameters.
        casts: pytree of tuples of dtypes like the parameters: from lasting to compute dtype.
        optimizer: the optax transformation, without clipping.
        opt_placements: pytree of `Placement` like the optimizer state.
        schedule: applied steps -> learning rate, for the report; None if the optimizer keeps it to itself.
    """

    model: Model
    config: Config
    plan: StagePlan
    precision: Precision
    mesh: Mesh
    placements: Any
    trainable: Any
    casts: Any
    optimizer: optax.GradientTransformation
    opt_placements: Any
    schedule: optax.Schedule | None

    @property
    def wire(self) -> Wire:
        """How gradients travel."""
        return Wire(
            dtype=self.precision.reduce,
            n_replicas=self.mesh.shape["replica"],
            n_summed=n_data_shards(self.mesh),
            prescale=self.config.prescale_gradients,
            predivide=self.config.gradient_predivide_factor,
            rounded=self.precision.reduce == jnp.bfloat16 and self.mesh.devices.flat[0].platform == "cpu",
        )

    @property
    def specs(self) -> Any:
        """The partition of each parameter."""
        return jax.tree.map(lambda p: p.spec, self.placements, is_leaf=is_placement)


def train_step(recipe: Recipe) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """Builds `step(state, batch) -> (state, metrics)`.

    The leaves of `batch` are `[accumulation, rows of a micro-batch over all devices, ...]`, sharded on the second
    dimension.
    """
    placements, _ = split(recipe.placements, recipe.trainable)
    optimizer = optax.with_extra_args_support(recipe.optimizer)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        scale = state.loss_scale.scale
        grads, loss, user_metrics, model_state = _sharded_grads(recipe)(
            state.params, state.model_state, batch, jax.random.key_data(key), scale
        )

        grads = unpad(grads, placements)
        norm = optax.tree.norm(grads)
        finite = _fits(grads, norm, recipe.precision, scale)
        grads = _clip(grads, norm, recipe.config.gradient_clipping)

        trained, frozen = split(state.params, recipe.trainable)
        params = unpad(trained, placements)
        opt_state = unpad(state.opt_state, recipe.opt_placements)
        grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, params)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes its int32 step count with floats
            updates, opt_state = optimizer.update(grads, opt_state, params, value=loss)
            params = optax.apply_updates(params, updates)

        # Skip, don't branch: a step with a non-finite gradient selects the old state, on every device alike.
        proposed = (pad(params, placements), pad(opt_state, recipe.opt_placements), model_state)
        current = (trained, state.opt_state, state.model_state)
        trained, opt_state, model_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), proposed, current)
        new_state = TrainState(
            params=join(trained, frozen),
            opt_state=opt_state,
            model_state=model_state,
            loss_scale=update_loss_scale(state.loss_scale, ~finite, recipe.config),
            step=state.step + 1,
            applied_steps=state.applied_steps + finite.astype(jnp.int32),
            rng=state.rng,
        )
        learning_rate = {}
        if recipe.schedule is not None:
            with jax.numpy_dtype_promotion("standard"):  # as the optimizer calls it
                learning_rate["learning_rate"] = jnp.asarray(recipe.schedule(state.applied_steps), jnp.float32)
        metrics = {
            **user_metrics,
            "loss": loss,
            "grad_norm": norm,
            **learning_rate,
            "loss_scale": scale,
            "overflow": ~finite,
            "skipped_steps": new_state.step - new_state.applied_steps,
            "applied_steps": new_state.applied_steps,
        }
        return new_state, metrics

    return step


def eval_step(recipe: Recipe) -> Callable[[TrainState, Any], dict[str, jax.Array]]:
    """Builds `evaluate(state, batch) -> metrics`, for a batch `[rows, ...]` sharded on the first dimension."""

    def local(params, model_state, batch, key):
        params, apply = _compute_params(recipe, params, train=False)
        outcome = apply(params, model_state, recipe.precision.inputs(batch), jax.random.wrap_key_data(key))
        return _averages({"loss": outcome.loss, **outcome.metrics}, n_data_shards(recipe.mesh))

    def evaluate(state: TrainState, batch: Any) -> dict[str, jax.Array]:
        sharded = shard_over_data(local, recipe.mesh, (recipe.specs, P(), P(DATA_AXES), P()), P())
        return sharded(state.params, state.model_state, batch, state.rng)

    return evaluate


def shard_over_data(fn: Callable, mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable:
    """`jax.shard_map` over the data axes; the tensor axis is left to the compiler."""
    return jax.shard_map(
        fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=set(DATA_AXES), check_vma=False
    )


def _sharded_grads(recipe: Recipe) -> Callable:
    """Builds the manual part: sharded parameters and a batch -> averaged gradients, loss, metrics, new model state."""
    n_micro = recipe.config.gradient_accumulation_steps
    n_shards = n_data_shards(recipe.mesh)
    placements, _ = split(recipe.placements, recipe.trainable)
    specs, _ = split(recipe.specs, recipe.trainable)

    def local(params_sharded, model_state, batch, key_data, scale):
        params, apply = _compute_params(recipe, params_sharded, train=True)
        trained, frozen = split(params, recipe.trainable)
        key = jax.random.fold_in(jax.random.wrap_key_data(key_data), jax.lax.axis_index(DATA_AXES))

        def objective(trained, model_state, micro_batch, key):
            outcome: Outcome = apply(join(trained, frozen), model_state, recipe.precision.inputs(micro_batch), key)
            # Each device's share is brought to the size of a mean before it is scaled, so that fp16 gradients of a sum
            # over tokens stay in range; the weights come back in once the gradients are fp32.
            weight = _mean_weight(outcome.loss, n_shards)
            return outcome.loss.total / _positive(weight) * (scale / n_micro), (outcome, weight)

        def micro_step(model_state, micro_batch, i):
            grad = jax.grad(objective, has_aux=True)
            grads, (outcome, weight) = grad(trained, model_state, micro_batch, jax.random.fold_in(key, i))
            sums = {"loss": outcome.loss, **outcome.metrics}
            return grads, sums, weight, jax.tree.map(_as_before, outcome.model_state, model_state)

        def weighted_micro_step(model_state, micro_batch, i):
            grads, sums, weight, model_state = micro_step(model_state, micro_batch, i)
            return _times(_in_fp32(grads), weight), sums, weight, model_state

        if n_micro == 1:
            grads, sums, _, new_model_state = micro_step(model_state, jax.tree.map(lambda x: x[0], batch), 0)
            unscale = 1 / (scale * n_shards)
        else:
            grads, sums, weight, new_model_state = _accumulate(weighted_micro_step, model_state, batch, n_micro)
            unscale = n_micro / (scale * _positive(weight) * n_shards)
        grads = _times(_in_fp32(_reduce_at_end(recipe.plan, grads, placements, recipe.wire)), unscale)
        averages = _averages(sums, n_shards * n_micro)
        return grads, averages.pop("loss"), averages, _agree(new_model_state, model_state)

    return shard_over_data(
        local, recipe.mesh, (recipe.specs, P(), P(None, DATA_AXES), P(), P()), (specs, P(), P(), P())
    )


def _compute_params(recipe: Recipe, params_sharded: Any, *, train: bool) -> tuple[Any, Callable]:
    """The parameters that enter the loss, and the loss that takes them, as the stage has it."""

    def apply(params, model_state, batch, key):
        return recipe.model.apply(params, model_state, batch, key, train)

    placements, casts, wholes = recipe.placements, recipe.casts, None
    if recipe.plan.gather is not Gather.AT_USE:

        def gathered(path: Any, placement: Placement, shard: jax.Array, cast: Any) -> jax.Array:
            with label("gather", path_name(path), "the step"):
                return gather_leaf(shard, placement, cast)

        wholes = jax.tree_util.tree_map_with_path(gathered, placements, params_sharded, casts, is_leaf=is_placement)
        if not recipe.plan.scatters_at_use:
            # What is differentiated are the whole parameters; their gradients stay on the device until the end.
            params_sharded, wholes = wholes, None
            placements = jax.tree.map(lambda p: Placement(p.shape), placements, is_leaf=is_placement)
            casts = jax.tree.map(lambda _: (), placements, is_leaf=is_placement)
    zero = recipe.config.zero_optimization
    limits = Limits(zero.stage3_prefetch_bucket_size, zero.stage3_max_live_parameters, zero.stage3_max_reuse_distance)
    return params_sharded, gather_at_use(
        apply,
        placements,
        recipe.wire,
        casts=casts,
        trainable=recipe.trainable,
        wholes=wholes,
        limits=limits if recipe.plan.gather is Gather.AT_USE else None,
    )


def _accumulate(micro_step: Callable, model_state: Any, batch: Any, n_micro: int) -> Any:
    """Runs the micro-batches one after the other and adds up what they give, gradients in fp32."""
    first = jax.tree.map(lambda x: x[0], batch)
    zeros = jax.tree.map(
        lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(micro_step, model_state, first, jnp.int32(0))[:3]
    )

    def body(carry, xs):
        model_state, totals = carry
        *new, model_state = micro_step(model_state, *xs)
        return (model_state, jax.tree.map(jnp.add, totals, tuple(new))), None

    (model_state, totals), _ = jax.lax.scan(body, (model_state, zeros), (batch, jnp.arange(n_micro, dtype=jnp.int32)))
    return *totals, model_state


def _in_fp32(grads: Any) -> Any:
    """Floating gradients in the dtype in which they are accumulated."""
    return jax.tree.map(lambda g: g.astype(jnp.float32) if jnp.issubdtype(g.dtype, jnp.floating) else g, grads)


def _reduce_at_end(plan: StagePlan, grads: Any, placements: Any, wire: Wire) -> Any:
    """Sums what is still the device's own: every gradient at stages 0 and 1, those of whole leaves at 2 and 3."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(grads)
    flat = treedef.flatten_up_to(placements)
    whole = iter(sum_leaves([g for (_, g), p in zip(paths, flat, strict=True) if p.dim is None], wire))
    reduced = []
    for (path, grad), placement in zip(paths, flat, strict=True):
        if placement.dim is None:
            reduced.append(next(whole))
        elif plan.scatters_at_use:
            reduced.append(grad)
        else:
            with label("scatter", path_name(path), "the step"):
                reduced.append(scatter_leaf(grad, placement, wire))
    return treedef.unflatten(reduced)


def _mean_weight(loss: Mean, n_shards: int) -> jax.Array:
    """The average weight of a device's share of this micro-batch; 1 where all count alike."""
    if loss.weight is None:
        return jnp.ones((), jnp.float32)
    return jax.lax.stop_gradient(jax.lax.psum(loss.weight, DATA_AXES)) / n_shards


def _positive(weight: jax.Array) -> jax.Array:
    """A weight that can be divided by: nothing at all counts as one, so that an empty batch has loss and gradient 0."""
    return jnp.where(weight > 0, weight, 1.0)


def _averages(sums: dict[str, Mean], count: int) -> dict[str, jax.Array]:
    """Local sums -> means over all devices, in one collective."""
    totals = jax.lax.psum(sums, DATA_AXES)
    return {name: m.total / (count if m.weight is None else _positive(m.weight)) for name, m in totals.items()}


def _agree(model_state: Any, before: Any) -> Any:
    """Averages model state that a step has changed, so that it stays the same on every device."""

    def agree(new, old):
        return jax.lax.pmean(new, DATA_AXES) if new is not old and jnp.issubdtype(new.dtype, jnp.inexact) else new

    return jax.tree.map(agree, model_state, before)


def _fits(grads: Any, norm: jax.Array, precision: Precision, scale: jax.Array) -> jax.Array:
    """Whether the step can be taken: the norm is finite, so every gradient is, and one pass over them tells both.

    In fp16 the scaled gradients must fit fp16 too. Accumulation in fp32 hides an overflow that DeepSpeed, which
    accumulates in fp16, sees and answers with a smaller scale; judging the sum by what fp16 can hold keeps the scale,
    and so the skipped steps, the same.
    """
    finite = jnp.isfinite(norm)
    if precision.compute == jnp.float16:
        for grad in jax.tree.leaves(grads):
            if jnp.issubdtype(grad.dtype, jnp.floating):
                finite &= jnp.isfinite((grad * scale).astype(jnp.float16)).all()
    return finite


def _clip(grads: Any, norm: jax.Array, max_norm: float) -> Any:
    """Clips by global norm as DeepSpeed does: divides by (norm + 1e-6) / max_norm where that exceeds 1."""
    if not max_norm:
        return grads
    divisor = jnp.maximum((norm + 1e-6) / max_norm, 1.0)
    return jax.tree.map(lambda g: g / divisor.astype(g.dtype), grads)


def _times(grads: Any, factor: jax.Array) -> Any:
    """Gradients of any dtype, complex ones included, times one real number."""
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)


def _as_before(new: jax.Array, old: jax.Array) -> jax.Array:
    """Model state in the dtype it lasts in, whatever dtype the model computed it in."""
    return new if new.dtype == old.dtype else new.astype(old.dtype)
