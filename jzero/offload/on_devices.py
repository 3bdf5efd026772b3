"""State on the devices: the plain way, without offloading. The update runs on global arrays."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import jax
import optax
from jax.extend import core as jex_core

from jzero.base.types import Grads, OptState, Params
from jzero.jaxpr import compat
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

    program, shapes = compat.trace(proposed, before, grads, step.loss)
    new = _kept_early(program, jax.tree.leaves((before, grads, step.loss)), step.finite)
    params, state = jax.tree.unflatten(jax.tree.structure(shapes), new)
    return StepUpdate(pad(params, placements), pad(state, fixed.opt_placements))


def _kept_early(program: compat.Subprogram, operands: list[Any], finite: jax.Array) -> list[Any]:
    """Runs an update whose outputs replace its first operands, and keeps the old value as soon as it has a new one.

    What goes on from a new moment, such as the parameter's update, then goes on from the one that is kept, which is
    the same unless the step is skipped, and then nothing of it remains. XLA would otherwise compute it twice or copy
    the old one.
    """
    jaxpr = program.jaxpr
    outputs = list(zip(jaxpr.outvars, operands, strict=False))
    times_put_out = Counter(v for v, _ in outputs if not isinstance(v, jex_core.Literal))
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    # A value that is put out twice replaces two old ones, so that it cannot be either of them before the end.
    early = {
        v: old for v, old in outputs if not isinstance(v, jex_core.Literal) and v in made and times_put_out[v] == 1
    }
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *operands], strict=True))
    read = lambda v: v.val if isinstance(v, jex_core.Literal) else values[v]
    for eqn in jaxpr.eqns:
        for v, new in zip(eqn.outvars, compat.bind(eqn, [read(v) for v in eqn.invars]), strict=True):
            values[v] = keep(new, early[v], finite) if v in early else new
    is_kept = lambda v, old: read(v) is old or (not isinstance(v, jex_core.Literal) and v in early)
    return [read(v) if is_kept(v, old) else keep(read(v), old, finite) for v, old in outputs]
