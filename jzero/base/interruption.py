"""Ctrl-C where Python alone would be late or loud: pressed twice, and while modules are imported.

Python runs a signal's handler in the main thread, between two of its own instructions. While the main thread waits for
a compiler or a device, signals are only remembered, and two of them as one. The C handler below Python's writes each of
them to a file at once, which a thread reads.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = (signal.SIGINT, signal.SIGTERM)
"""What asks a program to end."""

_active = threading.Lock()
"""Held while a thread watches, as a process has one such file."""


@contextmanager
def second_signal_ends() -> Iterator[None]:
    """Within it, a second SIGINT or SIGTERM ends the process at once, whatever its main thread waits for.

    The first one does what its handler does. Where Python reads from a prompt or a notebook, which a second Ctrl-C must
    not end, and outside of the main thread, nothing changes.

    Example:
        >>> with second_signal_ends():
        ...     pass
    """
    interactive = hasattr(sys, "ps1")
    mine = threading.current_thread() is threading.main_thread() and not interactive
    if not mine or not _active.acquire(blocking=False):
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(read_end,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(write_end)  # which ends the thread
        watcher.join()
        os.close(read_end)
        _active.release()


def _watch(read_end: int) -> None:
    asked = 0
    while numbers := os.read(read_end, 64):  # a byte for each signal that has a handler in Python
        for number in numbers:
            asked += number in ENDING
            if asked == 2:
                os.write(2, b"Ended by a second signal.\n")
                os._exit(128 + number)


@contextmanager
def silent_interrupt() -> Iterator[None]:
    """Within it, Ctrl-C ends the process without a traceback; for imports, which leave nothing half done.

    A Ctrl-C that is ignored, as of a program in a shell's background, or that has a handler of its own stays so.

    Example:
        >>> with silent_interrupt():
        ...     import json
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) not in (signal.default_int_handler, signal.SIG_DFL):
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
