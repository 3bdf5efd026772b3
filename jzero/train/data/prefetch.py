"""The next batches, made in a thread while the devices work on the present one."""

import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Generic, NamedTuple, TypeVar

from jzero.errors import ConfigError, JzeroError

AHEAD = 2
"""How many batches are made ahead; with 0 each is made when it is asked for."""

T = TypeVar("T")


class _Failed(NamedTuple):
    error: BaseException


class Prefetch(Generic[T]):
    """An iterator over `make(0)`, `make(1)` and so on; a context manager that ends its thread.

    What `make` raises is raised where that batch would have come.

    Args:
        make: makes a batch by its number; called in one thread, in order.
        n: how many there are; None for no end.
        ahead: how many are made ahead.

    Example:
        >>> with Prefetch(lambda number: number**2, 4) as squares:
        ...     list(squares)
        [0, 1, 4, 9]
    """

    def __init__(self, make: Callable[[int], T], n: int | None = None, *, ahead: int | None = None):
        self._make, self._n, self._taken = make, n, 0
        self._ahead = AHEAD if ahead is None else ahead
        self._ready: queue.Queue[T | _Failed] = queue.Queue(max(1, self._ahead))
        self._over = threading.Event()
        # A daemon, so that a batch that never comes keeps no process from ending.
        self._thread = threading.Thread(target=self._run, daemon=True, name="batches")
        if self._ahead:
            self._thread.start()

    def __iter__(self) -> "Prefetch[T]":
        return self

    def __next__(self) -> T:
        if self._taken == self._n:
            raise StopIteration
        number, self._taken = self._taken, self._taken + 1
        made = self._ready.get() if self._ahead else self._try(number)
        if isinstance(made, _Failed):
            self._taken = number
            self._n = number  # nothing comes after it
            raise _told(made.error, number)
        return made

    def close(self) -> None:
        """Ends the thread, as soon as the batch that it makes is made."""
        self._over.set()
        while True:
            try:
                self._ready.get_nowait()  # it may wait for room
            except queue.Empty:
                break
        if self._thread.is_alive():
            self._thread.join(1.0)

    def __enter__(self) -> "Prefetch[T]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        number = 0
        while not self._over.is_set() and number != self._n:
            made = self._try(number)
            while not self._over.is_set():
                try:
                    self._ready.put(made, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(made, _Failed):
                return
            number += 1

    def _try(self, number: int) -> T | _Failed:
        try:
            return self._make(number)
        except BaseException as error:
            return _Failed(error)


def _told(error: BaseException, number: int) -> BaseException:
    """What to raise: errors that say what is wrong as they are, others in a sentence."""
    if isinstance(error, JzeroError | StopIteration | KeyboardInterrupt | SystemExit):
        return error
    what = f"{type(error).__name__}: {error}".rstrip(".: ")
    said = ConfigError(f"data: batch {number + 1} from here cannot be made: {what}.")
    said.__cause__ = error
    return said
