"""A job from its first attempt to its last."""

import contextlib
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TextIO

from jzero.errors import ConfigError
from jzero.launch.agent.child import log_file
from jzero.launch.agent.orders import Orders, Process
from jzero.launch.heartbeat import BATCH, MICRO
from jzero.launch.job.attempt import Attempt
from jzero.launch.job.gathering import Gathering, Present
from jzero.launch.job.layout import fitting, processes_of
from jzero.launch.job.link import Arrived
from jzero.launch.job.plan import Ended, Failure, Job
from jzero.launch.job.restarts import resuming, what_follows

_LONGEST_DELAY = 30.0


@dataclass
class Launching:
    """A job under way.

    Attributes:
        job: what was asked for.
        max_restarts: how often it may be started again without a checkpoint in between.
        out: where the processes' output goes.
        err: where the launcher's own sentences go.
    """

    job: Job
    max_restarts: int = 0
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    _name: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    _batch: int = 0
    _micro: int = 0
    _devices_each: float = 0
    _begun: bool = False
    _saved: bool = False
    _n_processes: int = 0
    _asked: int = 0
    _lost: list[TextIO] = field(default_factory=list)
    _arrivals: "SimpleQueue[Arrived]" = field(default_factory=SimpleQueue)

    def run(self) -> int:
        """Runs the job to its end.

        Returns:
            The status to end with: 0, that of the first process that has failed, or 128 plus a signal's number.

        Raises:
            ConfigError: something of the job does not fit the hosts.
            LaunchError: too few hosts have answered.
        """
        with self._hearing_signals():
            return self._run()

    def _run(self) -> int:
        attempt, counted = 1, 0
        while True:
            self._arrivals = SimpleQueue()
            ended, saved = self._attempt(attempt)
            if ended.failure is None:
                return 128 + ended.signal if ended.signal else 0
            self._report(ended.failure)
            follows = what_follows(ended, counted=counted, most=self.max_restarts, saved=saved)
            if not follows.again:
                if follows.why:
                    self._say(f"Not started again: {follows.why}.")
                return 128 + ended.signal if ended.signal else ended.failure.status
            attempt, counted = attempt + 1, counted + follows.counts
            self._say(f"Starting again, attempt {attempt}: {follows.why}.")
            until = time.monotonic() + (min(2.0 ** (counted - 1), _LONGEST_DELAY) if follows.counts else 0.0)
            while not self._asked and time.monotonic() < until:
                time.sleep(0.1)
            if self._asked:
                return 128 + self._asked

    def _attempt(self, number: int) -> tuple[Ended, int]:
        gathering = Gathering(self.job, self._arrivals, self._say, os.environ, patient=number > 1)
        present = gathering.gather()
        try:
            if gathering.signal:
                return Ended(None, gathering.signal), -1
            present, processes = self._world(present)
            attempt = Attempt(self.job, present, processes, self._arrivals, show=self._show, say=self._say)
            try:
                ended = attempt.run(self._orders(number, len(present)))
            finally:
                board = attempt.board
                self._batch, self._micro = self._batch or board.batch, self._micro or board.micro
                self._devices_each = board.devices / self._n_processes or self._devices_each
                self._begun, self._saved = self._begun or board.begun, self._saved or board.saved >= 0
            return ended, board.saved
        finally:
            gathering.close()

    def _world(self, present: list[Present]) -> tuple[list[Present], list[tuple[Process, ...]]]:
        """The hosts that take part, and the processes of each; said where it is not what it was."""
        present = present[: self.job.max_nodes]
        processes = processes_of([each.node for each in present], self.job.procs_per_node)
        if self._batch and self._devices_each:
            devices = [round(len(some) * self._devices_each) for some in processes]
            count = fitting(devices, self._batch, self.job.min_nodes or 1)
            if not count:
                raise ConfigError(
                    f"The train_batch_size of {self._batch} cannot be divided among {sum(devices)} devices on "
                    f"{len(devices)} hosts, or on fewer down to --min-nodes; wait for more hosts, or change the batch."
                )
            if count < len(present):
                self._say(
                    f"{count} of {len(present)} hosts take part: {self._batch} samples a step divide among these."
                )
            present, processes = present[:count], processes[:count]
        n_processes = sum(map(len, processes))
        if self._n_processes not in (0, n_processes):
            self._say(f"The world is {n_processes} processes on {len(present)} hosts now; it was {self._n_processes}.")
        self._n_processes = n_processes
        return present, processes

    def _orders(self, number: int, n_nodes: int) -> Orders:
        job = self.job
        command = job.command if number == 1 else resuming(job.command, begun=self._begun, saved=self._saved)
        kept = {BATCH: str(self._batch), MICRO: str(self._micro)} if self._batch else {}
        return Orders(
            command,
            folder=job.folder,
            variables={**job.variables, **kept},
            processes=(),
            n_processes=self._n_processes,
            coordinator="",
            attempt=number,
            launch=self._name,
            logs=job.logs,
            bind=job.bind,
            n_nodes=n_nodes,
        )

    def _report(self, failure: Failure) -> None:
        self._say(f"{failure.sentence}{' Its last lines:' if failure.tail else ''}")
        for line in failure.tail:
            self._say(f"    {line}")
        if self.job.logs:
            self._say(f"All output is in {log_file(Path(self.job.logs), 0).parent} on each host, a file a process.")

    def _show(self, rank: int, text: str) -> None:
        width = len(str(max(self._n_processes - 1, 0)))
        self._print(f"[{rank:>{width}}] {text}", self.out)

    def _say(self, sentence: str) -> None:
        self._print(sentence, self.err)

    def _print(self, text: str, where: TextIO) -> None:
        """Prints a line; a console that is gone, or a full disk, ends no training."""
        if where in self._lost:
            return
        try:
            encoding = where.encoding or "utf-8"
            print(text.encode(encoding, "backslashreplace").decode(encoding), file=where, flush=True)
        except OSError as error:
            self._lost.append(where)
            kept = f"it is in {self.job.logs} on each host" if self.job.logs else "it is lost, as --logs is empty"
            if where is self.out:
                self._say(f"The output cannot be shown any more: {error.strerror}; {kept}.")

    @contextlib.contextmanager
    def _hearing_signals(self) -> Iterator[None]:
        """Within it, SIGTERM, SIGINT and SIGHUP are words that arrive."""

        def put(number: int, _: FrameType | None) -> None:
            self._asked = int(signal.SIGTERM if number == signal.SIGHUP else number)
            self._arrivals.put(Arrived(-1, {"event": "own signal", "number": self._asked}))

        before = {number: signal.signal(number, put) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
