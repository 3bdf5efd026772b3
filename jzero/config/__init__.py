"""DeepSpeed JSON and run files, read into frozen objects in which every key is known and every value checked."""

from jzero.config.config import Config, ResolvedConfig
from jzero.config.run import RunConfig, apply_overrides, load_run
from jzero.config.schema.arguments import TrainingArguments
from jzero.config.schema.data import DataConfig
from jzero.config.schema.optimizer import OptimizerConfig
from jzero.config.schema.scheduler import SchedulerConfig

__all__ = [
    "Config",
    "DataConfig",
    "OptimizerConfig",
    "ResolvedConfig",
    "RunConfig",
    "SchedulerConfig",
    "TrainingArguments",
    "apply_overrides",
    "load_run",
]
