"""jzero: ZeRO stages 0 to 3 for any Flax model, driven by the DeepSpeed JSON you already have."""

from jzero.base.quiet import quiet_start

quiet_start()

from jzero import plan  # noqa: E402
from jzero.base.version import VERSION  # noqa: E402
from jzero.checkpoint import Checkpoints  # noqa: E402
from jzero.config import Config  # noqa: E402
from jzero.engine import Engine  # noqa: E402
from jzero.errors import (  # noqa: E402
    BatchError,
    CheckpointError,
    ConfigError,
    DamagedCheckpointError,
    JzeroError,
    LossScaleError,
    ModelError,
    SkippedStepsError,
)
from jzero.flax.model import Mean  # noqa: E402
from jzero.flax.rematerialise import remat  # noqa: E402
from jzero.launch import initialize_from_environment  # noqa: E402
from jzero.sharding.mesh import make_mesh, simulate_devices  # noqa: E402
from jzero.start import functional, initialize  # noqa: E402
from jzero.zero.build import Functional  # noqa: E402
from jzero.zero.state import TrainState  # noqa: E402

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
    "LossScaleError",
    "Mean",
    "ModelError",
    "SkippedStepsError",
    "TrainState",
    "functional",
    "initialize",
    "initialize_from_environment",
    "make_mesh",
    "plan",
    "remat",
    "simulate_devices",
]
