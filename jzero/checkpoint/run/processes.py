"""What one process finds out, all of them act on: an error of one is the same sentence for every one."""

from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from jzero.errors import CheckpointError, DamagedCheckpointError

_MESSAGE_BYTES = 4096


def on_first_process(action: Callable[[], None]) -> None:
    """Runs an action once, on the first process; the others wait for it, and fail in the same way if it fails.

    Raises:
        CheckpointError: the action raised one.
    """
    error: CheckpointError | None = None
    if jax.process_index() == 0:
        try:
            action()
        except CheckpointError as refusal:
            error = refusal
    agree(error)


def agree(error: CheckpointError | None) -> None:
    """Raises on every process if any process has an error: its own, or that of the first one that has one."""
    if jax.process_count() > 1:
        messages = multihost_utils.process_allgather(_encoded(error))
        failed = [kind_and_text for kind_and_text in messages if kind_and_text[0]]
        if failed and error is None:
            kind, text = _KINDS[int(failed[0][0]) - 1], bytes(failed[0][1:]).rstrip(b"\0").decode(errors="replace")
            raise kind(text)
    if error is not None:
        raise error


_KINDS = (CheckpointError, DamagedCheckpointError)


def _encoded(error: CheckpointError | None) -> np.ndarray:
    line = np.zeros(1 + _MESSAGE_BYTES, np.uint8)
    if error is not None:
        text = str(error).encode()[:_MESSAGE_BYTES]
        line[0] = 1 + isinstance(error, DamagedCheckpointError)
        line[1 : 1 + len(text)] = np.frombuffer(text, np.uint8)
    return line
