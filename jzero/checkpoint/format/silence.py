"""Keeps Orbax and tensorstore from printing tracebacks of a save or load that failed: the caller gets a sentence.

When one write fails, Orbax gives up on all others and closes its event loop; what they have to say comes later, finds
the loop closed, and would be printed once for each of them.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator

from jzero.checkpoint.format.header import STAGED

_ORBAX = f"{os.sep}orbax{os.sep}"


class _OfASave(logging.Filter):
    """Leaves out what Orbax's threads log of a failed write of ours: it names our folder, or comes while we save."""

    n_writing = 0

    def filter(self, record: logging.LogRecord) -> bool:
        of_a_thread = record.exc_info is not None and self.n_writing > 0
        return not (_ORBAX in record.pathname and (of_a_thread or STAGED in record.getMessage()))


class _OfATask(logging.Filter):
    """Leaves out what asyncio logs of tasks of Orbax, or of our folder, whose failure nobody waited for."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _ORBAX not in record.getMessage() and STAGED not in record.getMessage()


_OF_A_SAVE = _OfASave()


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """While this lasts, Orbax writes for us, and raises here what its threads would log as well."""
    _OF_A_SAVE.n_writing += 1
    try:
        yield
    finally:
        _OF_A_SAVE.n_writing -= 1


def leave_out_tracebacks() -> None:
    """Installs the filters; everything else is logged and printed as before."""
    logging.getLogger("absl").addFilter(_OF_A_SAVE)
    logging.getLogger("asyncio").addFilter(_OfATask())
    sys.unraisablehook = _without_late_answers(sys.unraisablehook)


def _without_late_answers(
    hook: "Callable[[sys.UnraisableHookArgs], object]",
) -> "Callable[[sys.UnraisableHookArgs], object]":
    def filtered(unraisable: "sys.UnraisableHookArgs") -> None:
        called = unraisable.exc_traceback and unraisable.exc_traceback.tb_frame.f_code
        from_outside = called is not None and called.co_name == "call_soon_threadsafe"  # no Python calls it
        if not (from_outside and str(unraisable.exc_value) == "Event loop is closed"):
            hook(unraisable)

    return filtered
