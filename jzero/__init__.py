"""jzero: ZeRO stages 0 to 3 for any Flax model, driven by the DeepSpeed JSON you already have.

Names are loaded when they are first used; until then neither JAX nor Flax is.
"""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names
from jzero.base.quiet import quiet_start
from jzero.base.version import VERSION
from jzero.errors import (
    BatchError,
    CheckpointError,
    ConfigError,
    DamagedCheckpointError,
    JzeroError,
    LaunchError,
    LossScaleError,
    ModelError,
    OffloadError,
    SkippedStepsError,
)

if TYPE_CHECKING:
    from jzero import plan
    from jzero.checkpoint import Checkpoints
    from jzero.config import Config
    from jzero.engine import Engine
    from jzero.flax.mean import Mean
    from jzero.flax.rematerialise import remat
    from jzero.launch import initialize_from_environment
    from jzero.ops import attention, attention_with_lse, cross_entropy
    from jzero.sharding.batch_wide import all_gather, axis_index, psum
    from jzero.sharding.mesh import make_mesh, simulate_devices
    from jzero.start import functional, initialize
    from jzero.train.iterators import fit
    from jzero.zero.build import Functional
    from jzero.zero.state import TrainState
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.plan": (),
            "jzero.checkpoint": ("Checkpoints",),
            "jzero.config": ("Config",),
            "jzero.engine": ("Engine",),
            "jzero.flax.mean": ("Mean",),
            "jzero.flax.rematerialise": ("remat",),
            "jzero.launch": ("initialize_from_environment",),
            "jzero.ops": ("attention", "attention_with_lse", "cross_entropy"),
            "jzero.sharding.batch_wide": ("all_gather", "axis_index", "psum"),
            "jzero.sharding.mesh": ("make_mesh", "simulate_devices"),
            "jzero.start": ("functional", "initialize"),
            "jzero.train.iterators": ("fit",),
            "jzero.zero.build": ("Functional",),
            "jzero.zero.state": ("TrainState",),
        },
    )

__version__ = VERSION
__all__ = [
    "BatchError",
    "CheckpointError",
    "Checkpoints",
    "Config",
    "ConfigError",
    "DamagedCheckpointError",
    "Engine",
    "Functional",
    "JzeroError",
    "LaunchError",
    "LossScaleError",
    "Mean",
    "ModelError",
    "OffloadError",
    "SkippedStepsError",
    "TrainState",
    "all_gather",
    "attention",
    "attention_with_lse",
    "axis_index",
    "cross_entropy",
    "fit",
    "functional",
    "initialize",
    "initialize_from_environment",
    "make_mesh",
    "plan",
    "psum",
    "remat",
    "simulate_devices",
]

quiet_start()
