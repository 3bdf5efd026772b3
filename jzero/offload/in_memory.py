"""Where the arrays of a state lie of which nothing is in files."""

from jzero.base.types import Mask
from jzero.offload.host_budget import budget
from jzero.offload.interface import NewState, OptimizerLayout, StateLayout
from jzero.sharding.trees import shardings, stored


def layout_in_memory(
    new: NewState, fixed: OptimizerLayout, on_host: Mask | None, params_on_host: Mask, *, at_use: bool, n_micro: int
) -> StateLayout:
    """The layout of a state of which nothing is in files.

    Args:
        new: how a state is made.
        fixed: the parameters and their optimizer.
        on_host: pytree of bool like the state: what lies in host memory; None for nothing.
        params_on_host: the same for the parameters.
        at_use: whether parameters come to the device at each use.
        n_micro: micro-batches in a step.
    """
    mesh = fixed.mesh
    state = stored(new.placements, new.state, mesh, on_host)
    return StateLayout(
        state=state,
        whole=state,
        init=new.init,
        step_shardings=(shardings(new.placements, mesh, on_host), ()),
        budget=budget(state, params_on_host, fixed.placements, at_use=at_use, n_micro=n_micro),
        donates=True,
    )
