"""How the processes of a run are started and find each other, and how one that fails does not leave the others waiting.

Names are loaded when they are first used: what starts processes needs no JAX.
"""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.launch.environment import Launch, read_launch
    from jzero.launch.failure import leave_failed
    from jzero.launch.joining import initialize_from_environment
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.launch.environment": ("Launch", "read_launch"),
            "jzero.launch.failure": ("leave_failed",),
            "jzero.launch.joining": ("initialize_from_environment",),
        },
    )

__all__ = ["Launch", "initialize_from_environment", "leave_failed", "read_launch"]
