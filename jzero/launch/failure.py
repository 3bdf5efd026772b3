"""A process that fails ends soon, and so do the others, which would wait for it.

JAX has a process that ends wait for the others, up to five minutes, while these wait for it inside a collective. A
process that has failed therefore waits only as long as it takes the others to fail in the same way, and then breaks its
connections, which ends the others.
"""

import contextlib
import os
import re
import sys
import threading
from types import TracebackType

import jax

from jzero.launch.agreement import tell_failure
from jzero.launch.statuses import RESTART_STATUS

GRACE_SECONDS = 5.0
"""How much later the others may meet the same failure, such as a mistake in a file that all of them read."""


_OF_ANOTHER = re.compile(
    r"Gloo \w+ failed|NCCL operation .* failed: remote process|(reset|closed) by peer|Socket closed"
)
"""What Gloo and NCCL say where another process is gone."""


def end_others_on_failure() -> None:
    """Makes an exception that nobody catches end this process soon; call it once the processes are connected."""
    shown_before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if sentence := lost_peer(error):
            print(f"error: {sentence}", file=sys.stderr)
            leave_failed(RESTART_STATUS, sentence)
            sys.exit(RESTART_STATUS)
        shown_before(kind, error, traceback)
        leave_failed(1, f"{kind.__name__}: {error}")

    sys.excepthook = hook


def lost_peer(error: BaseException) -> str:
    """The sentence for an error that only says that another process is gone, or the network to it; else "".

    Example:
        >>> import jax
        >>> lost_peer(jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection reset by peer"))
        'Another process of this run has ended, or the network to it is down; ... by peer).'
        >>> lost_peer(ValueError("x"))
        ''
    """
    first_line = str(error).partition("\n")[0]
    status, _, said = first_line.partition(": ")  # XLA's, which comes in exceptions of several types
    if not (re.fullmatch("[A-Z_]+", status) and _OF_ANOTHER.search(said)):
        return ""
    return f"Another process of this run has ended, or the network to it is down; its own output says why ({said})."


def leave_failed(exit_code: int, sentence: str = "") -> None:
    """Ends this process if there are others, in order if they fail too within the grace; returns if there are none.

    Args:
        exit_code: of this process, if it ends here.
        sentence: what went wrong, for those of the others that wait to compare notes with this one.
    """
    if not jax.distributed.is_initialized():
        return
    with contextlib.suppress(Exception):  # the connection may be what has failed
        tell_failure(sentence)
    leaving = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leaving.start()
    leaving.join(GRACE_SECONDS)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)  # not by the interpreter's own end, which waits for collectives that will never finish
