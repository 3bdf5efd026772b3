"""How the processes of a run find each other, and how one that fails does not leave the others waiting."""

from jzero.launch.environment import initialize_from_environment
from jzero.launch.failure import leave_failed

__all__ = ["initialize_from_environment", "leave_failed"]
