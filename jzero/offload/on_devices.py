"""State on the devices: the plain way, without offloading. The update runs on global arrays."""

from dataclasses import dataclass

import jax
import optax

from jzero.base.types import Grads, OptState, Params
from jzero.jaxpr import run_replacing, trace
from jzero.offload.in_memory import layout_in_memory
from jzero.offload.interface import NewState, OptimizerLayout, Run, StateLayout, StateStore, StepUpdate, UpdateInputs
from jzero.offload.resident import ResidentStore
from jzero.optim.apply import apply_optimizer, keep
from jzero.optim.clipping import clip_divisor, divided
from jzero.sharding.trees import pad, split, unpad


@dataclass(frozen=True)
class OnDevices:
    """Everything on the devices; see `jzero.offload.interface.Offload`.

    Attributes:
        fixed: the parameters and their optimizer.
    """

    fixed: OptimizerLayout
    piece_elements: int = 0  # nothing comes in pieces
    fetches_at_use: bool = False

    def fetched(self, params_sharded: Params) -> Params:
        return params_sharded

    def grad_params(self, params_sharded: Params) -> Params:
        return params_sharded

    def compute_shards(self, params_sharded: Params) -> Params | None:
        del params_sharded  # each use casts for itself

    def update(self, step: UpdateInputs) -> StepUpdate:
        return update_on_devices(self.fixed, step)

    def streamed_bytes(self) -> int:
        return 0

    def place(self, new: NewState, n_micro: int) -> StateLayout:
        nowhere = jax.tree.map(lambda _: False, new.state.params)
        return layout_in_memory(new, self.fixed, None, nowhere, at_use=False, n_micro=n_micro)

    def open_store(self, run: Run, layout: StateLayout) -> StateStore:
        del layout
        return ResidentStore(run)


def update_on_devices(fixed: OptimizerLayout, step: UpdateInputs) -> StepUpdate:
    """Updates parameters that live on the devices; every gradient is unscaled already.

    Args:
        fixed: the parameters and their optimizer.
        step: stored shapes.

    Returns:
        New parameters and optimizer state, stored shapes; the old ones if the step is skipped.
    """
    placements, _ = split(fixed.placements, fixed.trainable)
    divisor = clip_divisor(step.norm, fixed.max_norm)
    grads = jax.tree.map(lambda g: divided(g, divisor), unpad(step.grads, placements))
    before = unpad(step.trained, placements), unpad(step.opt_state, fixed.opt_placements)
    optimizer = optax.with_extra_args_support(fixed.optimizer)

    def proposed(kept: tuple[Params, OptState], grads: Grads, loss: jax.Array) -> tuple[Params, OptState]:
        return apply_optimizer(optimizer, grads, kept[1], kept[0], loss)

    program, shapes = trace(proposed, before, grads, step.loss)
    # What an update computes from a new moment, it computes from the one that is kept: the same one, unless the step is
    # skipped, and then the result is thrown away. Otherwise XLA would compute the moment twice or copy the old one.
    operands = jax.tree.leaves((before, grads, step.loss))
    new = run_replacing(program, operands, lambda new, old: keep(new, old, step.finite))
    params, state = jax.tree.unflatten(jax.tree.structure(shapes), new)
    return StepUpdate(pad(params, placements), pad(state, fixed.opt_placements))
