"""Everything about a run that is fixed before it starts, as the step's parts take it."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jzero.base.types import Casts, Mask, Placements, PyTree
from jzero.config import ResolvedConfig
from jzero.flax.model import Model
from jzero.offload.interface import Offload
from jzero.sharding.collectives import GradReduceConfig
from jzero.sharding.mesh import n_data_shards, platform
from jzero.sharding.trees import is_placement
from jzero.zero.precision import Precision
from jzero.zero.stages import StagePlan


@dataclass(frozen=True)
class StepSpec:
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
        schedule: applied steps -> learning rate, for the report; None if the optimizer keeps it to itself.
        momentum: applied steps -> momentum, for the report; None if no schedule cycles it.
        offload: where the state lies, how it reaches the devices, and how it is updated.
        two_level: whether the state is divided over the groups of devices too, see `jzero.zero.groups`.
        first_uses: at two levels, the indices of the parameters in the order in which the loss uses them.
    """

    model: Model
    config: ResolvedConfig
    plan: StagePlan
    precision: Precision
    mesh: Mesh
    placements: Placements
    trainable: Mask
    casts: Casts
    schedule: optax.Schedule | None
    momentum: optax.Schedule | None
    offload: Offload
    two_level: bool = False
    first_uses: tuple[int, ...] = ()

    @property
    def grad_reduce(self) -> GradReduceConfig:
        """How gradients are summed over the devices."""
        return GradReduceConfig(
            dtype=self.precision.reduce,
            n_groups=self.mesh.shape["replica"],
            n_summed=n_data_shards(self.mesh),
            prescale=self.config.prescale_gradients,
            predivide=self.config.gradient_predivide_factor,
            rounded=self.precision.reduce == jnp.bfloat16 and platform(self.mesh) == "cpu",
            pipelined=self.config.zero_optimization.overlaps_comm and platform(self.mesh) != "cpu",
        )

    @property
    def specs(self) -> PyTree:
        """The partition of each parameter."""
        return jax.tree.map(lambda p: p.spec, self.placements, is_leaf=is_placement)
