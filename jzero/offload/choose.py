"""Which implementation of `jzero.offload.interface.Offload` a configuration asks for."""

import jax
import optax

from jzero.base.types import OptState, Params
from jzero.config import ResolvedConfig
from jzero.config.schema.sections import Aio
from jzero.offload.host.in_host_memory import InHostMemory
from jzero.offload.host.stream import largest_piece
from jzero.offload.host.update import Plan, plan_update
from jzero.offload.interface import Offload, OptimizerLayout
from jzero.offload.nvme.on_nvme import OnNvme
from jzero.offload.on_devices import OnDevices
from jzero.offload.plan import plan_offload
from jzero.sharding.mesh import platform
from jzero.sharding.placement import path_name
from jzero.sharding.trees import is_placement, owners, split


def offload_for(
    config: ResolvedConfig, fixed: OptimizerLayout, trained: Params, opt_state: OptState, *, persists_small_leaves: bool
) -> Offload:
    """Chooses where the state lies.

    Args:
        config: reads `zero_optimization.offload_optimizer`, `offload_param`, `sub_group_size`, and `aio`.
        fixed: the parameters and their optimizer.
        trained: abstract trainable parameters, true shapes.
        opt_state: abstract optimizer state, true shapes.
        persists_small_leaves: see `plan_offload`.

    Raises:
        ConfigError: the update of a parameter on the host reads other parameters.
    """
    zero, most = config.zero_optimization, largest_piece(platform(fixed.mesh))
    plan = plan_offload(config, fixed.placements, fixed.trainable, most, persists_small_leaves=persists_small_leaves)
    if not plan.is_used:
        return OnDevices(fixed)
    mirrored, hosted = owners(opt_state, trained), jax.tree.leaves(split(plan.on_host, fixed.trainable)[0])
    opt_on_host = jax.tree.map(lambda owner: owner >= 0 and hosted[owner], mirrored)
    update = _update_plan(fixed, trained, opt_state, jax.tree.leaves(mirrored), hosted) if any(hosted) else None
    if not plan.in_files:
        return InHostMemory(plan, fixed, opt_on_host, update)
    assert zero.offload_optimizer is not None
    files, aio = zero.offload_optimizer, config.aio or Aio()
    return OnNvme(plan, fixed, opt_on_host, update, files, aio, zero.sub_group_size)


def _update_plan(
    fixed: OptimizerLayout, trained: Params, opt_state: OptState, mirrored: list[int], hosted: list[bool]
) -> Plan:
    """The update of parameters on the host, taken apart."""
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(trained)]
    placements = jax.tree.leaves(split(fixed.placements, fixed.trainable)[0], is_leaf=is_placement)
    optimizer = optax.with_extra_args_support(fixed.optimizer)
    return plan_update(optimizer, trained, opt_state, mirrored, names, placements, hosted)
