"""What a process tells its agent of its progress, where it has one: steps, phases and checkpoints, a line each.

The agent's pipe has a name, in the environment, so that a program between agent and process need not hand it on. A line
is shorter than what pipes write in one piece, so all processes of a node share one.
"""

import contextlib
import os
from collections.abc import Mapping

from jzero.base.types import Json
from jzero.launch.wire import packed

VARIABLE = "JZERO_HEARTBEAT"
"""The pipe's path."""

BATCH = "JZERO_TRAIN_BATCH_SIZE"
"""The samples of a step, as the launcher tells them to later attempts; they are to keep them on other devices."""

MICRO = "JZERO_MICRO_BATCH_SIZE"
"""The samples of a device and micro-batch that the first attempt had."""

BEAT_SECONDS = 1.0
"""How often a process tells of itself."""

_pipes: dict[str, int] = {}


def has_agent() -> bool:
    """Whether somebody listens."""
    return VARIABLE in os.environ


def tell(message: Mapping[str, Json]) -> None:
    """Tells the agent something, unless there is none, or its pipe is full.

    Example:
        >>> tell({"saved": 100})  # nobody has launched this process
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    with contextlib.suppress(OSError, ValueError):
        if path not in _pipes:
            _pipes[path] = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(_pipes[path], packed({"rank": int(os.environ["JZERO_RANK"]), **message}))
