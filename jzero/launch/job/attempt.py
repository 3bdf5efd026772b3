"""One attempt at a job: its processes are started on the hosts that have answered, watched, and ended together."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

from jzero.base.types import Json
from jzero.errors import LaunchError
from jzero.launch.agent.orders import Orders, Process
from jzero.launch.job.board import Board
from jzero.launch.job.gathering import Present
from jzero.launch.job.link import Arrived
from jzero.launch.job.plan import Ended, Failure, Job
from jzero.launch.statuses import PREEMPTED, RESTART_STATUS, shell_status, words_of_status
from jzero.launch.wire import SILENCE_SECONDS

STOPPING_SECONDS = 60.0
"""How much later than the first one the others may end, where all of them were asked to stop and save."""

_PORT_SECONDS = 30.0
_LAST_SECONDS = 15.0
"""How much longer than the grace an agent may take to say that its processes have ended."""


class Attempt:
    """An attempt.

    Args:
        job: what was asked for.
        present: the hosts that take part.
        layout: the processes of each.
        arrivals: where the agents' words arrive.
        show: called with a rank and a line of its output.
        say: called with a sentence for people.
    """

    def __init__(
        self,
        job: Job,
        present: Sequence[Present],
        layout: Sequence[tuple[Process, ...]],
        arrivals: "SimpleQueue[Arrived]",
        *,
        show: Callable[[int, str], None],
        say: Callable[[str], None],
    ):
        self._job, self._present, self._layout, self._arrivals = job, present, layout, arrivals
        self._show, self._say = show, say
        self.board = Board()
        self._node_of = {process.rank: i for i, some in enumerate(layout) for process in some}
        self._by_number = {each.link.node: i for i, each in enumerate(present)}
        self._running = set(self._node_of)
        self._failure: Failure | None = None
        self._exited, self._signal, self._heeded = True, 0, False
        self._end_at: float | None = None
        self._over_at: float | None = None

    def run(self, orders: Orders) -> Ended:
        """Starts the processes and waits until all have ended.

        Args:
            orders: what is the same for all nodes.
        """
        coordinator = self._coordinator()
        for i, each in enumerate(self._present):
            mine = replace(orders, processes=self._layout[i], coordinator=coordinator, node=i, host=each.link.host)
            each.link.send(mine.message())
        while self._running and (self._over_at is None or time.monotonic() < self._over_at):
            self._take(1.0)
            self._look(time.monotonic())
        return Ended(self._failure, self._signal if self._heeded else 0, self._exited)

    def _coordinator(self) -> str:
        first, job = self._present[0], self._job
        host = job.master_addr or ("127.0.0.1" if len(self._present) == 1 else first.hello["address"])
        port, deadline = job.master_port, time.monotonic() + _PORT_SECONDS
        if port is None:
            first.link.send({"do": "port"})
        while port is None and time.monotonic() < deadline and self._failure is None:
            message = self._take(1.0)
            port = message["port"] if message and message["event"] == "port" else None
        if port is None:
            raise LaunchError(f"{first.link.host} has found no free port: {first.link.why_gone}.")
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _take(self, seconds: float) -> Mapping[str, Json] | None:
        try:
            number, message = self._arrivals.get(timeout=seconds)
        except Empty:
            return None
        if number < 0:
            self._stop(message["number"])
        elif (node := self._by_number.get(number)) is not None:
            self._hear(node, message)
        return message

    def _hear(self, node: int, message: Mapping[str, Json]) -> None:
        host = self._present[node].link.host
        match message["event"]:
            case "line":
                self._show(message["rank"], message["text"])
            case "beat":
                self.board.hear(message["beat"], time.monotonic())
            case "exit":
                self._exit(message)
            case "signal":
                self._stop(message["number"])
            case "say" | "noise":
                self._say(f"{host}: {message['text']}")
            case "gone":
                self._lose(node, f"its agent is gone, {self._present[node].link.why_gone}")

    def _exit(self, message: Mapping[str, Json]) -> None:
        rank, status = message["rank"], message["status"]
        self._running.discard(rank)
        if status == 0 or self._failure is not None:
            return
        if self._signal and status in (-self._signal, 128 + self._signal):
            self._heeded = True
            self._finish_by(STOPPING_SECONDS)
            return
        sentence = f"{self.who(rank, message['pid'])} {words_of_status(status)}."
        if status == RESTART_STATUS and (found := self.board.behind(time.monotonic())) is not None:
            sentence += f" {self.who(found[0])} is behind: {found[1]}."
        self._exited = status > 0
        self._fail(Failure(shell_status(status), sentence, tuple(message["tail"])))

    def who(self, rank: int, pid: int = 0) -> str:
        """A process, for people."""
        node = self._node_of[rank]
        process = next(each for each in self._layout[node] if each.rank == rank)
        gpus = f", GPU{'s' * (len(process.gpus) > 1)} {', '.join(map(str, process.gpus))}" if process.gpus else ""
        return f"Process {rank} (on {self._present[node].link.host}{gpus}{f', pid {pid}' if pid else ''})"

    def _fail(self, failure: Failure) -> None:
        """Notes the first failure and ends the rest: at once, unless they were asked to stop and are about to."""
        self._failure = failure
        self._finish_by(STOPPING_SECONDS if failure.status in PREEMPTED and self._exited else 0.0)

    def _finish_by(self, seconds: float) -> None:
        if self._end_at is None:
            self._end_at = time.monotonic() + seconds

    def _lose(self, node: int, why: str) -> None:
        mine = [process.rank for process in self._layout[node]]
        lost = self._running.intersection(mine)
        self._running -= lost
        if lost and self._failure is None:
            host = self._present[node].link.host
            self._fail(Failure(RESTART_STATUS, f"{host} is lost with process{_listed(sorted(lost))}: {why}."))

    def _look(self, now: float) -> None:
        """What nobody reports: a host that says nothing, a process that is stopped, a time that is over."""
        for node, each in enumerate(self._present):
            if (silent := now - each.link.heard) > SILENCE_SECONDS:
                self._lose(node, f"its agent has said nothing for {silent:.0f} s")
        if self._failure is None and (rank := self.board.frozen(now)) is not None and rank in self._running:
            _, said = self.board.behind(now) or (rank, "")
            beat = self.board.beats[rank]
            said = said or f"it has said nothing for {now - beat.at:.0f} s, last at step {beat.step}, {beat.phase}"
            self._fail(Failure(RESTART_STATUS, f"{self.who(rank)} is stopped: {said}."))
        if self._end_at is not None and now >= self._end_at and self._over_at is None:
            for each in self._present:
                each.link.send({"do": "end", "grace": self._job.grace})
            self._over_at = now + self._job.grace + _LAST_SECONDS

    def _stop(self, number: int) -> None:
        """Hands a signal on, once: the launcher's own, or one that an agent was sent."""
        if self._signal:
            return
        self._signal = number
        for each in self._present:
            each.link.send({"do": "signal", "number": number})


def _listed(ranks: Sequence[int]) -> str:
    return f"{'es' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
