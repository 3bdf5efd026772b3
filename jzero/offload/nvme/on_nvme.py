"""Master parameters and moments in files: the program computes with what is made from them, and defers their update."""

import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jzero.base.types import Params
from jzero.config.schema.sections import Aio
from jzero.config.schema.zero import OffloadOptimizer
from jzero.offload.host.in_host_memory import FlatUpdate, InHostMemory, on_host_of
from jzero.offload.host.update import UpdateStep, run_rest
from jzero.offload.host_budget import budget
from jzero.offload.interface import (
    DeferredUpdate,
    NewState,
    Run,
    StateLayout,
    StateStore,
    StepUpdate,
    UpdateInputs,
)
from jzero.offload.nvme.nvme_state import InFiles, NvmeState
from jzero.offload.nvme.partition import StatePartition, partition_state
from jzero.optim.apply import keep, widened
from jzero.optim.clipping import divided
from jzero.sharding import host_memory
from jzero.sharding.host_memory import is_on_host, to_host
from jzero.sharding.trees import replicated, stored


@dataclass(frozen=True)
class OnNvme(InHostMemory):
    """The optimizer on NVMe; see `jzero.offload.interface.Offload`.

    Attributes:
        files: the section `zero_optimization.offload_optimizer`.
        aio: the section `aio`.
        sub_group: the key `zero_optimization.sub_group_size`.
    """

    files: OffloadOptimizer
    aio: Aio
    sub_group: int | None

    def grad_params(self, params_sharded: Params) -> Params:
        """A stand-in of the master copy's dtype, which is never read, in the place of what is in files."""

        def stand_in(x: jax.Array, moved: bool, casts: tuple) -> jax.Array:
            if not (moved and casts):
                return x
            zeros = jnp.zeros(x.shape, self.fixed.param_dtype)
            return to_host(widened(zeros)) if is_on_host(x) else zeros

        return jax.tree.map(stand_in, params_sharded, self.moved, self.fixed.casts)

    def compute_shards(self, params_sharded: Params) -> Params | None:
        """What lasts of a parameter whose master copy is in files is what computes."""
        return self.cast_once(params_sharded)

    def update(self, step: UpdateInputs) -> StepUpdate:
        plan, flat = self.update_plan, FlatUpdate(self.fixed, step)
        assert plan is not None
        around = UpdateStep(
            lambda _, grad, scalars: divided(grad, scalars),
            lambda new, old, _: keep(new, old, step.finite),
            flat.divisor,
            self.plan.piece_elements,
        )
        new = run_rest(plan, flat.operands, flat.placements, around)
        scalars = {i: flat.operands[i] for leaf in plan.leaves for i in leaf.reads if i not in leaf.inputs}
        left, divisor = [flat.grads[leaf.inputs[0]] for leaf in plan.leaves], flat.divisor
        if self.plan.at_use:  # gradients on the host, still to be multiplied
            divisor = (1.0 if divisor is None else divisor) / step.unscale
        updated = flat.rebuilt([new.get(j) for j in range(flat.n_results)])
        return updated._replace(deferred=DeferredUpdate(left, scalars, divisor, step.finite))

    def place(self, new: NewState, n_micro: int) -> StateLayout:
        mesh, at_use = self.fixed.mesh, self.plan.at_use
        whole = stored(new.placements, new.state, mesh, on_host_of(new.state, self.plan.on_host, self.opt_on_host))
        nowhere = jax.tree.map(lambda _: False, new.state)
        on_host = dataclasses.replace(nowhere, params=self.plan.on_host) if at_use else nowhere
        partition = self.partition(whole)
        state = partition.abstract(stored(new.placements, new.state, mesh, on_host))
        at = jax.tree.map(lambda x: x.sharding, state)
        left = [host_memory.sharding(mesh, p.spec, on_host=at_use) for p in partition.placements]
        everywhere = replicated(mesh)
        return StateLayout(
            state=state,
            whole=whole,
            init=lambda *given: partition.on_devices(new.init(*given)),
            step_shardings=(partition.without(at), DeferredUpdate(left, *[everywhere] * 3)),  # pyright: ignore
            budget=budget(
                state,
                on_host.params,
                self.fixed.placements,
                at_use=at_use,
                n_micro=n_micro,
                in_files=partition.bytes_in_files(whole),
            ),
            donates=False,
        )

    def open_store(self, run: Run, layout: StateLayout) -> StateStore:
        assert self.update_plan is not None
        partition, at_use = self.partition(layout.whole), self.plan.at_use
        in_files = InFiles(self.fixed, self.update_plan, partition, self.files, self.aio, self.sub_group, at_use)
        return NvmeState(in_files, run, layout)

    def partition(self, whole: Params) -> StatePartition:
        """What of a whole state, abstract or not, is in files."""
        assert self.update_plan is not None
        return partition_state(self.update_plan, whole, self.fixed.trainable, self.fixed.casts)
