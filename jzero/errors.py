"""The errors a user can meet: each message is one sentence that says what is wrong, where, and what would be right."""


class JzeroError(ValueError):
    """Base of every error that jzero raises for bad input; the command line prints its message and exits with 2."""


class ConfigError(JzeroError):
    """A configuration, run file or command-line override that cannot be honoured."""


class BatchError(JzeroError):
    """A batch whose shapes do not fit the batch sizes of the configuration."""


class ModelError(JzeroError):
    """A model or loss function that does not follow the contract of `jzero.initialize`."""


class LossScaleError(JzeroError):
    """The dynamic loss scale reached its minimum and the gradients still overflow."""


class SkippedStepsError(JzeroError):
    """As many steps in a row were skipped as `jzero.max_skipped_steps_in_a_row` allows."""


class CheckpointError(JzeroError):
    """A checkpoint that cannot be written or that does not fit the model."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose files are not what was written; an older one may be whole."""


class OffloadError(JzeroError):
    """State in files on NVMe that could not be read or written while training."""
