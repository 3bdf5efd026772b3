"""One process of a job, as its agent sees it: in a group of its own, and gone when the agent is."""

import contextlib
import ctypes
import os
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from jzero.launch.wire import Lines

TAIL = 20
"""So many of the last lines of a process are told when it has ended."""

_SET_DEATH_SIGNAL = 1
_DRAIN_BYTES = 1 << 16
_MOST_LEFT_BYTES = 1 << 20
"""What a pipe can hold at most: more than that comes from somebody who still writes."""

_LONGEST_OF_TAIL = 2000
"""So many characters of a line are told when its process has ended, so that the message stays a short one."""


def log_file(folder: Path, rank: int) -> Path:
    """Where a process's output is kept.

    Example:
        >>> log_file(Path("logs"), 12).name
        'rank-00012.log'
    """
    return folder / f"rank-{rank:05d}.log"


class Child:
    """A process that was started.

    Args:
        command: what it runs.
        rank: its number in the job.
        environment: its variables.
        folder: its working directory.
        log: the file for its output; None for none.
        cpus: those that it may use; empty for all.

    Attributes:
        output: the descriptor that its output arrives at.
        status: what it ended with, as `subprocess` has it; None while it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        rank: int,
        *,
        environment: Mapping[str, str],
        folder: str,
        log: BinaryIO | None = None,
        cpus: frozenset[int] = frozenset(),
    ):
        self.rank, self.tail, self.status = rank, deque[str](maxlen=TAIL), None
        self._log, self._lines, self._open = log, Lines(), True
        self.log_error = ""
        read_end, write_end = os.pipe()
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,  # whatever is sent to the agent's group does not arrive a second time
                preexec_fn=_prepare(cpus),
            )
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        os.set_blocking(read_end, False)
        self.output = read_end

    @property
    def pid(self) -> int:
        """Its number on the node."""
        return self._process.pid

    def read(self, most: int = _DRAIN_BYTES) -> Iterator[str]:
        """The lines of output that are whole by now.

        Args:
            most: about so many bytes, as one that writes without a pause must not keep the agent from its orders.
        """
        n_read = 0
        while self._open and n_read < most:
            try:
                data = os.read(self.output, _DRAIN_BYTES)
            except BlockingIOError:
                return
            self._open = bool(data)
            n_read += len(data)
            self._keep(data)
            yield from self._shown(self._lines.add(data))

    def ended(self) -> bool:
        """Whether it has ended; what is left of its group is killed then, while nothing else can have its number."""
        if self.status is None and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            self.send(signal.SIGKILL)
            self.status = self._process.wait()
        return self.status is not None

    def rest(self) -> Iterator[str]:
        """The last lines, once it has ended."""
        yield from self.read(_MOST_LEFT_BYTES)
        yield from self._shown(self._lines.rest())
        os.close(self.output)
        if self._log is not None:
            with contextlib.suppress(OSError):
                self._log.close()

    def send(self, number: int) -> None:
        """Sends a signal to all of its group, each of which gets it once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _keep(self, data: bytes) -> None:
        if self._log is None:
            return
        try:
            self._log.write(data)
        except OSError as error:  # output may be lost where a disk is full, training may not
            self.log_error = error.strerror or str(error)
            self._log = None

    def _shown(self, lines: Iterator[bytes]) -> Iterator[str]:
        for line in lines:
            text = line.decode(errors="replace").rstrip("\r")
            cut = len(text) > _LONGEST_OF_TAIL
            self.tail.append(text[:_LONGEST_OF_TAIL] + " ..." * cut)
            yield text


def _prepare(cpus: frozenset[int]) -> Callable[[], None]:
    """What the new process does before it runs its command: it asks to be killed when the agent ends, however."""
    agent, library = os.getpid(), ctypes.CDLL(None, use_errno=True)
    prctl = getattr(library, "prctl", None)

    def prepare() -> None:
        if prctl is not None:
            prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0)
            if os.getppid() != agent:  # it has ended in between
                os._exit(1)
        if cpus:
            os.sched_setaffinity(0, cpus)

    return prepare
