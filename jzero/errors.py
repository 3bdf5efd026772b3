"""The errors a user can meet: each message is one sentence that says what is wrong, where, and what would be right.

Each is a `JzeroError`, and also what Python calls such a thing, for code that does not know jzero: what was given is
wrong (`ValueError`), training or a checkpoint went wrong (`RuntimeError`), a disk failed (`OSError`).
"""


class JzeroError(Exception):
    """Base of every error that jzero raises; the command line prints its message and exits with 2."""


class ConfigError(JzeroError, ValueError):
    """A configuration, run file or command-line override that cannot be honoured."""


class BatchError(JzeroError, ValueError):
    """A batch whose shapes do not fit the batch sizes of the configuration."""


class ModelError(JzeroError, ValueError):
    """A model or loss function that does not follow the contract of `jzero.initialize`."""


class LossScaleError(JzeroError, RuntimeError):
    """The dynamic loss scale reached its minimum and the gradients still overflow."""


class SkippedStepsError(JzeroError, RuntimeError):
    """As many steps in a row were skipped as `jzero.max_skipped_steps_in_a_row` allows."""


class CheckpointError(JzeroError, RuntimeError):
    """A checkpoint that cannot be written or that does not fit the model.

    No `OSError`, since most often the disk is well: what is there belongs to another model, or to another run.
    """


class DamagedCheckpointError(CheckpointError):
    """A checkpoint whose files are not what was written; an older one may be whole."""


class LaunchError(JzeroError, RuntimeError):
    """The processes of a run that have not found each other, as when one has not come; it may do so next time."""


class OffloadError(JzeroError, OSError):
    """State in files on NVMe that could not be read or written while training.

    It has no `errno` of its own: its message says what the system said.
    """
