"""The training step and the evaluation step as pure functions.

A training step is `optimizer(shard_map(loss and gradients))`: ZeRO's collectives are placed by hand inside `shard_map`,
over the data axes; the update runs outside it, on global arrays, so that any optax transformation sees whole
parameters.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jzero.base.types import Batch, Metrics
from jzero.offload.interface import DeferredUpdate, UpdateInputs
from jzero.optim.apply import keep
from jzero.sharding.batch_wide import every_device_alike
from jzero.sharding.mesh import DATA_AXES, n_data_shards, shard_over_data
from jzero.sharding.trees import join, split
from jzero.zero.grads import GradOutputs, WeightedSum, differentiable_loss, eval_sums, sharded_grads
from jzero.zero.loss_scale import skipped_share, update_loss_scale
from jzero.zero.micro_batches import positive
from jzero.zero.spec import StepSpec
from jzero.zero.state import TrainState


class StepOutput(NamedTuple):
    """What the program of a step gives.

    Attributes:
        state: the next state; None for what is in files or made from them.
        metrics: scalars by name.
        deferred: what is left to be done outside the program; () where nothing is in files.
    """

    state: TrainState
    metrics: Metrics
    deferred: DeferredUpdate | tuple[()]


def train_step(spec: StepSpec) -> Callable[[TrainState, Batch], StepOutput]:
    """Builds the program of a step.

    The leaves of the batch are `[accumulation, rows of a micro-batch over all devices, ...]`, sharded on the second
    dimension.
    """

    def step(state: TrainState, batch: Batch) -> StepOutput:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        found = sharded_grads(spec)(
            state.params, state.model_state, batch, jax.random.key_data(key), state.loss_scale.scale
        )
        norm, finite = found.stats.norm, found.stats.finite
        trained, frozen = split(state.params, spec.trainable)
        before = UpdateInputs(trained, state.opt_state, found.grads, found.unscale, found.loss, norm, finite)
        updated = spec.offload.update(before)
        model_state = keep(found.model_state, state.model_state, finite)
        new_state = TrainState(
            params=join(updated.trained, frozen),
            opt_state=updated.opt_state,
            model_state=model_state,
            loss_scale=update_loss_scale(state.loss_scale, ~finite, spec.config),
            step=state.step + 1,
            applied_steps=state.applied_steps + finite.astype(jnp.int32),
            rng=state.rng,
        )
        return StepOutput(new_state, _metrics(spec, state, new_state, found), updated.deferred)

    return step


def _metrics(spec: StepSpec, before: TrainState, after: TrainState, found: GradOutputs) -> Metrics:
    """What a step reports; see `jzero.Engine.train_batch`."""
    scheduled = {"learning_rate": spec.schedule, "momentum": spec.momentum}
    with jax.numpy_dtype_promotion("standard"):  # as the optimizer calls them
        scheduled = {n: jnp.asarray(f(before.applied_steps), jnp.float32) for n, f in scheduled.items() if f}
    return {
        **found.metrics,
        "loss": found.loss,
        "grad_norm": found.stats.norm,
        **scheduled,
        "loss_scale": before.loss_scale.scale,
        "overflow": ~found.stats.finite,
        "nonfinite_leaf": found.stats.leaf,
        "nonfinite_micro_batch": jnp.where(found.stats.finite, -1, found.micro_batch),
        "skipped_steps": after.step - after.applied_steps,
        "skipped_in_a_row": after.loss_scale.skipped_in_a_row,
        "skipped_share": skipped_share(after.loss_scale),
        "applied_steps": after.applied_steps,
    }


def eval_step(spec: StepSpec) -> Callable[[TrainState, Batch], Metrics]:
    """Builds `evaluate(state, batch) -> metrics`, for a batch `[rows, ...]` sharded on the first dimension."""

    def evaluate(state: TrainState, batch: Batch) -> Metrics:
        return _finished([_eval_sums(spec, state, batch, divided=True)])

    return evaluate


def partial_eval_step(spec: StepSpec) -> Callable[[TrainState, Batch | None, Batch], Metrics]:
    """Builds `evaluate(state, batch, rest) -> metrics`, where every device holds the rows of `rest`.

    Means over rows count by the number of rows, so that the result is that of all of them on one device.
    """

    def evaluate(state: TrainState, batch: Batch | None, rest: Batch) -> Metrics:
        parts = [] if batch is None else [_eval_sums(spec, state, batch, divided=True)]
        return _finished([*parts, _eval_sums(spec, state, rest, divided=False)])

    return evaluate


def _eval_sums(spec: StepSpec, state: TrainState, batch: Batch, *, divided: bool) -> dict[str, WeightedSum]:
    """Totals and weights over some rows; those of a plain mean weigh as many as there are rows."""
    n_rows = jax.tree.leaves(batch)[0].shape[0]

    def local(params, model_state, batch, key):
        params = spec.offload.fetched(params)
        params, apply = differentiable_loss(spec, params, params, train=False)
        with nullcontext() if divided else every_device_alike():
            outcome = apply(params, model_state, spec.precision.inputs(batch), jax.random.wrap_key_data(key))
        return eval_sums({"loss": outcome.loss, **outcome.metrics}, n_data_shards(spec.mesh), n_rows, divided=divided)

    in_specs = (spec.specs, P(), P(DATA_AXES) if divided else P(), P())
    return shard_over_data(local, spec.mesh, in_specs, P())(state.params, state.model_state, batch, state.rng)


def _finished(parts: Sequence[dict[str, WeightedSum]]) -> Metrics:
    sums = parts[0] if len(parts) == 1 else jax.tree.map(jnp.add, *parts)
    return {name: total / positive(weight) for name, (total, weight) in sums.items()}
