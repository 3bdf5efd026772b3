"""How the processes of a run find each other, and how one that fails does not leave the others waiting."""

from jzero.launch.environment import Launch, read_launch
from jzero.launch.failure import leave_failed
from jzero.launch.joining import initialize_from_environment

__all__ = ["Launch", "initialize_from_environment", "leave_failed", "read_launch"]
