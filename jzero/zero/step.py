"""The training step and the evaluation step as pure functions.

A training step is `optimizer(shard_map(loss and gradients))`: ZeRO's collectives are placed by hand inside `shard_map`,
over the data axes; the update runs outside it, on global arrays, so that any optax transformation sees whole
parameters.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jzero.sharding.mesh import DATA_AXES, n_data_shards, shard_over_data
from jzero.sharding.trees import join, split
from jzero.zero.grads import averages_of, compute_params, fetched, sharded_grads
from jzero.zero.loss_scale import skipped_share, update_loss_scale
from jzero.zero.spec import StepSpec
from jzero.zero.state import TrainState
from jzero.zero.update import keep, update_beside_files, update_from_host, update_on_devices


def train_step(spec: StepSpec) -> Callable[[TrainState, Any], tuple]:
    """Builds `step(state, batch) -> (state, metrics)`; with state in files `(state, metrics, pending)`, where the state
    has None for what is left to be done (`jzero.offload.nvme.partition.Pending`).

    The leaves of `batch` are `[accumulation, rows of a micro-batch over all devices, ...]`, sharded on the second
    dimension.
    """

    def step(state: TrainState, batch: Any) -> tuple:
        key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
        scale = state.loss_scale.scale
        grads, unscale, loss, user_metrics, model_state, grad_stats, micro_batch = sharded_grads(spec)(
            state.params, state.model_state, batch, jax.random.key_data(key), scale
        )
        finite = grad_stats.finite
        trained, frozen = split(state.params, spec.trainable)
        update = update_from_host if spec.update_plan else update_on_devices
        update = update_beside_files if spec.offload_plan.in_files else update
        trained, opt_state, *deferred = update(spec, trained, state.opt_state, grads, unscale, loss, grad_stats)
        model_state = keep(model_state, state.model_state, finite)
        new_state = TrainState(
            params=join(trained, frozen),
            opt_state=opt_state,
            model_state=model_state,
            loss_scale=update_loss_scale(state.loss_scale, ~finite, spec.config),
            step=state.step + 1,
            applied_steps=state.applied_steps + finite.astype(jnp.int32),
            rng=state.rng,
        )
        scheduled = {"learning_rate": spec.schedule, "momentum": spec.momentum}
        with jax.numpy_dtype_promotion("standard"):  # as the optimizer calls them
            scheduled = {n: jnp.asarray(f(state.applied_steps), jnp.float32) for n, f in scheduled.items() if f}
        metrics = {
            **user_metrics,
            "loss": loss,
            "grad_norm": grad_stats.norm,
            **scheduled,
            "loss_scale": scale,
            "overflow": ~finite,
            "nonfinite_leaf": grad_stats.leaf,
            "nonfinite_micro_batch": jnp.where(finite, -1, micro_batch),
            "skipped_steps": new_state.step - new_state.applied_steps,
            "skipped_in_a_row": new_state.loss_scale.skipped_in_a_row,
            "skipped_share": skipped_share(new_state.loss_scale),
            "applied_steps": new_state.applied_steps,
        }
        return new_state, metrics, *deferred

    return step


def eval_step(spec: StepSpec) -> Callable[[TrainState, Any], dict[str, jax.Array]]:
    """Builds `evaluate(state, batch) -> metrics`, for a batch `[rows, ...]` sharded on the first dimension."""

    def local(params, model_state, batch, key):
        params = fetched(spec, params)
        params, apply = compute_params(spec, params, params, train=False)
        outcome = apply(params, model_state, spec.precision.inputs(batch), jax.random.wrap_key_data(key))
        return averages_of({"loss": outcome.loss, **outcome.metrics}, n_data_shards(spec.mesh))

    def evaluate(state: TrainState, batch: Any) -> dict[str, jax.Array]:
        sharded = shard_over_data(local, spec.mesh, (spec.specs, P(), P(DATA_AXES), P()), P())
        return sharded(state.params, state.model_state, batch, state.rng)

    return evaluate
