"""A process that is alive but makes no progress ends itself, so that a run is started again and not paid for.

A collective that one process never enters keeps all others waiting for ever, and nobody notices: their connections
live. So each process knows what it is doing and since when, and a thread looks at that. It also tells the agent that
`jzero launch` has on the machine, so that the launcher can say which process the others wait for.
"""

import faulthandler
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType

from jzero.launch.heartbeat import BEAT_SECONDS, has_agent, tell
from jzero.launch.statuses import RESTART_STATUS

FACTOR = 10.0
"""A phase may take so many times as long as the mean step, if that is more than the least."""

SAVE_PATIENCE = 6.0
"""A save may take so many times as long as another phase: a slow disk is no hang."""


class Watchdog:
    """Ends the process if one phase of its work takes far too long; a context manager, within which it looks.

    Nothing is limited before the first step is done: compiling it may take any time.

    Args:
        least: seconds that every phase may take; 0 for no watching.
        process: this process's number.
        end: what is done then, with a sentence that says why.
        clock: seconds that only grow.

    Attributes:
        step: steps that were started.
        mean: seconds of a step, once known.
    """

    def __init__(
        self,
        least: float,
        process: int = 0,
        *,
        end: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.step, self.mean = 0, 0.0
        self._least, self._process = least, process
        self._end, self._clock = end or _end, clock
        self._now: tuple[str, float, float] | None = None
        self._begun = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def enter(self, phase: str, *, patience: float = 1.0) -> None:
        """Says what the process does from now on.

        Args:
            phase: in words.
            patience: how many times as long as usual it may take.
        """
        self._now = (phase, self._clock(), patience) if self._begun else None

    def unlimited(self) -> None:
        """Says that what follows may take any time, such as compiling."""
        self._now = None

    def begin(self, mean: float) -> None:
        """Says that a step is done, and how long the mean one takes; 0 if that is not known."""
        self._begun, self.mean = True, mean

    def overdue(self) -> str | None:
        """What takes far too long, in one sentence; None while nothing does."""
        if (now := self._now) is None or not self._least:
            return None
        phase, took, limit = now[0], self._clock() - now[1], self._limit(now[2])
        if took <= limit:
            return None
        return (
            f"Process {self._process} (on {socket.gethostname()}, pid {os.getpid()}) has made no progress for "
            f"{took:.0f} s at step {self.step}, {phase}, where {limit:.0f} s is the limit (jzero.hang_seconds and "
            f"{FACTOR:.0f} mean steps); it ends with status {RESTART_STATUS}. Above is what its threads were doing."
        )

    def beat(self) -> None:
        """Tells the agent, if there is one, what this process does and since when."""
        phase, since, patience = self._now or ("", self._clock(), 0.0)
        limit = self._limit(patience) if self._least else 0.0
        tell({"step": self.step, "phase": phase, "seconds": round(self._clock() - since, 1), "limit": round(limit, 1)})

    def _limit(self, patience: float) -> float:
        return patience * max(FACTOR * self.mean, self._least)

    def __enter__(self) -> "Watchdog":
        if self._least or has_agent():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        looks = min(5.0, max(0.05, self._least / 10)) if self._least else 5.0
        while not self._over.wait(min(looks, BEAT_SECONDS) if has_agent() else looks):
            self.beat()
            if sentence := self.overdue():
                self._end(sentence)
                return


def _end(sentence: str) -> None:
    sys.stdout.flush()
    faulthandler.dump_traceback(all_threads=True)
    print(sentence, file=sys.stderr, flush=True)
    os._exit(RESTART_STATUS)  # the main thread cannot be reached
