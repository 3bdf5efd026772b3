"""State in host memory: parameters come to the devices for a step or for each use, and are updated in pieces."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.typing import DTypeLike

from jzero.base.types import Mask, Params, PyTree
from jzero.offload.host.update import IN_FLIGHT, UpdateStep, run_update
from jzero.offload.host.update import Plan as UpdatePlan
from jzero.offload.in_memory import layout_in_memory
from jzero.offload.interface import NewState, OptimizerLayout, Run, StateLayout, StateStore, StepUpdate, UpdateInputs
from jzero.offload.on_devices import update_on_devices
from jzero.offload.plan import OffloadPlan
from jzero.offload.resident import ResidentStore
from jzero.optim.apply import keep
from jzero.optim.clipping import clip_divisor, divided, times
from jzero.sharding.host_memory import is_on_host, to_device
from jzero.sharding.mesh import platform
from jzero.sharding.placement import Placement
from jzero.sharding.trees import is_placement, split


@dataclass(frozen=True)
class InHostMemory:
    """Parameters and moments in host memory; see `jzero.offload.interface.Offload`.

    Attributes:
        plan: which parameters, and how they come to the devices.
        fixed: the parameters and their optimizer.
        opt_on_host: pytree of bool like the optimizer's state: what of it lies in host memory.
        update_plan: the update, taken apart; None if only frozen parameters are on the host.
    """

    plan: OffloadPlan
    fixed: OptimizerLayout
    opt_on_host: Mask
    update_plan: UpdatePlan | None

    @property
    def piece_elements(self) -> int:
        return self.plan.piece_elements

    @property
    def fetches_at_use(self) -> bool:
        return self.plan.at_use

    def fetched(self, params_sharded: Params) -> Params:
        return params_sharded if self.plan.at_use else jax.tree.map(to_device, params_sharded)

    def grad_params(self, params_sharded: Params) -> Params:
        return params_sharded

    def compute_shards(self, params_sharded: Params) -> Params | None:
        return None if self.plan.at_use else self.cast_once(params_sharded)

    def update(self, step: UpdateInputs) -> StepUpdate:
        if self.update_plan is None:
            return update_on_devices(self.fixed, step)
        flat = FlatUpdate(self.fixed, step)
        sums = {i for i, grad in enumerate(flat.grads) if is_on_host(grad)}

        def prepare(i: int, grad: jax.Array, scalars: dict[str, jax.Array]) -> jax.Array:
            grad = times(grad, scalars["unscale"]) if i in sums else grad
            return divided(grad, scalars["divisor"])

        around = UpdateStep(
            prepare,
            lambda new, old, scalars: keep(new, old, scalars["finite"]),
            {"unscale": step.unscale, "divisor": flat.divisor, "finite": step.finite},
            self.plan.piece_elements,
        )
        return flat.rebuilt(run_update(self.update_plan, flat.operands, flat.placements, self.fixed.mesh, around))

    def streamed_bytes(self) -> int:
        """Gradients, moments and parameters on their way, of as many parameters as may be under way at once."""
        if self.update_plan is None:
            return 0
        most, in_one_memory = 0, platform(self.fixed.mesh) == "cpu"
        for leaf in self.update_plan.leaves:
            shard = math.prod(leaf.placement.shard_shape)
            if in_one_memory and shard <= self.plan.piece_elements:
                continue  # updated where it lies
            n_elements = min(shard, self.plan.piece_elements) if leaf.in_pieces else shard
            most = max(most, 4 * n_elements * len(leaf.inputs))
        return IN_FLIGHT * most

    def place(self, new: NewState, n_micro: int) -> StateLayout:
        on_host = on_host_of(new.state, self.plan.on_host, self.opt_on_host)
        return layout_in_memory(new, self.fixed, on_host, self.plan.on_host, at_use=self.plan.at_use, n_micro=n_micro)

    def open_store(self, run: Run, layout: StateLayout) -> StateStore:
        del layout
        return ResidentStore(run)

    def cast_once(self, params_sharded: Params) -> Params:
        """Shards of moved parameters as they compute, None for all others.

        The gradient of a whole leaf is taken of what is used, so that it must be the leaf itself.
        """

        def cast_shard(
            placement: Placement, moved: bool, shard: jax.Array, casts: tuple[DTypeLike, ...]
        ) -> jax.Array | None:
            if not (moved and casts and placement.dim is not None):
                return None
            return shard if shard.dtype == casts[-1] else shard.astype(casts[-1])

        fixed = self.fixed
        return jax.tree.map(cast_shard, fixed.placements, self.moved, params_sharded, fixed.casts, is_leaf=is_placement)

    @property
    def moved(self) -> Mask:
        """Pytree of bool like the parameters: whether the optimizer keeps its copy away from the devices."""
        return jax.tree.map(lambda on_host, train: on_host and train, self.plan.on_host, self.fixed.trainable)


class FlatUpdate:
    """An update as flat lists: gradients, optimizer state, parameters, loss -> state, parameters."""

    def __init__(self, fixed: OptimizerLayout, step: UpdateInputs):
        params, self._treedef = jax.tree.flatten(step.trained)
        opt_placements, self._opt_treedef = jax.tree.flatten(fixed.opt_placements, is_leaf=is_placement)
        state = self._opt_treedef.flatten_up_to(step.opt_state)
        placements = jax.tree.leaves(split(fixed.placements, fixed.trainable)[0], is_leaf=is_placement)
        self._n_state = len(state)
        self.grads: list[jax.Array] = jax.tree.leaves(step.grads)
        self.operands: list[jax.Array] = [*self.grads, *state, *params, step.loss]
        self.placements = [*placements, *opt_placements, *placements, Placement(())]
        self.divisor = clip_divisor(step.norm, fixed.max_norm)

    @property
    def n_results(self) -> int:
        """The number of leaves of state and parameters together."""
        return len(self.operands) - len(self.grads) - 1

    def rebuilt(self, results: Sequence[jax.Array | None]) -> StepUpdate:
        """State and parameters as trees."""
        state, params = results[: self._n_state], results[self._n_state :]
        return StepUpdate(self._treedef.unflatten(params), self._opt_treedef.unflatten(state))


def on_host_of(state: PyTree, params_on_host: Mask, opt_on_host: Mask) -> Mask:
    """Pytree of bool like a training state: what lies in host memory."""
    nowhere = jax.tree.map(lambda _: False, state)
    return dataclasses.replace(nowhere, params=params_on_host, opt_state=opt_on_host)
