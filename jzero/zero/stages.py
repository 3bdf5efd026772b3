"""What a ZeRO stage means, as data.

A stage decides three things: which lasting state is sharded, when full parameters come into being, and when gradients
cross the mesh. The step reads this table and never compares a stage with a number.
"""

import enum
from dataclasses import dataclass

from jzero.errors import ConfigError


class Gather(enum.Enum):
    """When the full parameters that compute needs are made from the lasting ones."""

    NEVER = "the lasting parameters are already whole"
    ONCE_PER_STEP = "gathered once at the start of the step"
    AT_USE = "gathered where used and dropped, gathered again backward unless that comes soon"


class Reduce(enum.Enum):
    """When gradients are summed over the mesh, and what remains of them on a device."""

    SUM_ONCE_PER_STEP = "accumulated whole, summed once at the end of the step"
    SCATTER_ONCE_PER_STEP = "accumulated whole over the micro-batches, scattered once at the end of the step"
    SCATTER_AT_USE = "scattered in the backward pass, each as soon as it is produced, into a sharded accumulator"


@dataclass(frozen=True)
class StagePlan:
    """One row of the table.

    Attributes:
        stage: the DeepSpeed integer, key `zero_optimization.stage`.
        shards_state: the fp32 master parameters and the optimizer's moments are sharded, over the mesh's `shard` axis.
        gather: when the parameters used in compute are gathered.
        reduce: when gradients are reduced.
        persists_small_leaves: `stage3_param_persistence_threshold` says which leaves stay replicated.
    """

    stage: int
    shards_state: bool
    gather: Gather
    reduce: Reduce
    persists_small_leaves: bool

    @property
    def scatters_at_use(self) -> bool:
        """Whether gradients of sharded leaves leave the backward pass as shards, and the accumulator is sharded."""
        return self.reduce is Reduce.SCATTER_AT_USE


STAGES = (
    StagePlan(0, False, Gather.NEVER, Reduce.SUM_ONCE_PER_STEP, False),
    StagePlan(1, True, Gather.ONCE_PER_STEP, Reduce.SCATTER_ONCE_PER_STEP, False),
    StagePlan(2, True, Gather.ONCE_PER_STEP, Reduce.SCATTER_AT_USE, False),
    StagePlan(3, True, Gather.AT_USE, Reduce.SCATTER_AT_USE, True),
)


def stage_plan(stage: int) -> StagePlan:
    """Looks up the row of a stage.

    Args:
        stage: 0, 1, 2 or 3 (DeepSpeed key `zero_optimization.stage`).

    Raises:
        ConfigError: if there is no such stage.

    Example:
        >>> stage_plan(3).gather.value
        'gathered where used and dropped, gathered again backward unless that comes soon'
    """
    if stage not in range(len(STAGES)):
        raise ConfigError(f"zero_optimization.stage is {stage!r}, but ZeRO has the stages 0, 1, 2 and 3.")
    return STAGES[stage]
