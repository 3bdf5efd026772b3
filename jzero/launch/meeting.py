"""Processes meet before JAX connects them, so that whoever is missing, or was told something else, can be named.

JAX waits in silence, takes a second process of the same rank for the first one, and does not survive a port that is in
use. So the first process listens at that port itself, until all have come and said who they are; then it gives the port
to JAX. What is sent is one line of JSON each way.
"""

import contextlib
import json
import os
import selectors
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from jzero.base.types import Json
from jzero.errors import ConfigError, LaunchError

JOIN_SECONDS = 1800.0
"""How long processes wait for each other, unless told otherwise: images are pulled and nodes boot before they come."""

REPORT_SECONDS = 30.0
"""How often a process that waits says for whom."""

_RETRY_SECONDS = 0.25
_LONGEST_LINE = 65536
_N_LISTED = 8


@dataclass(frozen=True)
class Arrival:
    """What a process says of itself.

    Attributes:
        rank: its number.
        n_processes: how many it was told that there are.
        start: which start of the job it belongs to.
        host: its machine's name.
        pid: its process identifier.
        machine: which machine or container it is in.
        visible: its CUDA_VISIBLE_DEVICES.
    """

    rank: int
    n_processes: int
    start: str
    host: str
    pid: int
    machine: str
    visible: str | None

    @classmethod
    def of_this_process(cls, rank: int, n_processes: int, start: str, visible: str | None) -> "Arrival":
        """What this process says."""
        host = socket.gethostname()
        return cls(rank, n_processes, start, host, os.getpid(), _machine(host), visible)

    @property
    def who(self) -> str:
        """For people."""
        return f"process {self.rank} (on {self.host}, pid {self.pid})"


class Neighbours(NamedTuple):
    """The processes on one machine, as they met.

    Attributes:
        count: how many there are.
        rank: the own number among them, in the order of ranks.
        see_the_same: whether all of them were given the same CUDA_VISIBLE_DEVICES.
    """

    count: int
    rank: int
    see_the_same: bool


def meet(coordinator: str, own: Arrival, seconds: float) -> Neighbours:
    """Waits until all processes of the run have come; every process must call it.

    Args:
        coordinator: "host:port" of the first process.
        own: what this process is.
        seconds: how long to wait.

    Raises:
        ConfigError: processes were told things that do not fit together.
        LaunchError: some have not come, or the first one's port is in use.
    """
    host, _, port = coordinator.rpartition(":")
    deadline = time.monotonic() + seconds
    if own.rank == 0:
        with _listener(int(port)) as listener:
            answer = _Meeting(own, listener).wait(deadline, seconds)
    else:
        answer = _attend(host.strip("[]"), int(port), own, deadline, seconds)
    if answer.get("refused"):
        raise ConfigError(str(answer["refused"]))
    if answer.get("late"):
        raise LaunchError(str(answer["late"]))
    return Neighbours(int(answer["count"]), int(answer["rank"]), bool(answer["see_the_same"]))


def misfit(first: Arrival, new: Arrival, there: Arrival | None) -> str | None:
    """What is wrong with one that comes, in one sentence; None if nothing is.

    Args:
        first: the first process.
        new: the one that comes.
        there: who came with its rank before.

    Example:
        >>> here = Arrival(0, 2, "", "a", 10, "a", None)
        >>> misfit(here, Arrival(1, 3, "", "b", 11, "b", None), None)
        'The processes were told different numbers of processes: 2 to process 0 (on a, pid 10) and 3 to process 1 ...
    """
    if new.n_processes != first.n_processes:
        return (
            f"The processes were told different numbers of processes: {first.n_processes} to {first.who} and "
            f"{new.n_processes} to {new.who}; give all of them the same."
        )
    if there is not None:
        return (
            f"Two processes were given rank {new.rank}: on {there.host}, pid {there.pid}, and on {new.host}, pid "
            f"{new.pid}; each needs a rank of its own, from 0 to {first.n_processes - 1}."
        )
    return None


def neighbours(arrivals: Sequence[Arrival], own: Arrival) -> Neighbours:
    """Those of one machine among all that came."""
    here = sorted((each for each in arrivals if each.machine == own.machine), key=lambda each: each.rank)
    return Neighbours(len(here), here.index(own), len({each.visible for each in here}) == 1)


def numbers(ranks: Sequence[int]) -> str:
    """Ranks for people.

    Example:
        >>> numbers([1, 2, 3, 7]), numbers(range(0, 100, 2))
        ('1-3 and 7', '0, 2, 4, 6, 8, 10, 12, 14 and 42 more')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [f"{low}-{high}" if high > low else f"{low}" for low, high in runs]
    if len(runs) > _N_LISTED:
        left = sum(high - low + 1 for low, high in runs[_N_LISTED:])
        return f"{', '.join(texts[:_N_LISTED])} and {left} more"
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else texts[0]


class _Meeting:
    """The first process's side: who has come so far. One that leaves before all are there may come again."""

    def __init__(self, own: Arrival, listener: socket.socket):
        self._own, self._listener = own, listener
        self._came: dict[socket.socket, Arrival] = {}
        self._unread: dict[socket.socket, bytes] = {}

    def wait(self, deadline: float, seconds: float) -> Mapping[str, Json]:
        """The answer to the first process; the others have got theirs."""
        refused, report_at = None, time.monotonic() + REPORT_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while self._missing and not refused and (now := time.monotonic()) < deadline:
                if now >= report_at:
                    _say(f"Still waiting for {self._who_is_missing}.")
                    report_at = now + REPORT_SECONDS
                for key, _ in selector.select(min(deadline, report_at) - now):
                    refused = refused or self._hear(key.fileobj, selector)  # pyright: ignore[reportArgumentType]
        try:
            return self._end(refused, seconds)
        finally:
            for connection in self._unread:
                connection.close()

    def _end(self, refused: str | None, seconds: float) -> Mapping[str, Json]:
        if refused:
            return self._answer_all({"refused": refused})
        if self._missing:
            return self._answer_all({"late": f"Waited {seconds:.0f} s for {self._who_is_missing}."})
        everyone = [self._own, *self._came.values()]
        for connection, each in self._came.items():
            _send(connection, neighbours(everyone, each)._asdict())
        return neighbours(everyone, self._own)._asdict()

    @property
    def _missing(self) -> list[int]:
        there = {0, *(each.rank for each in self._came.values())}
        return [rank for rank in range(self._own.n_processes) if rank not in there]

    @property
    def _who_is_missing(self) -> str:
        missing = self._missing
        return (
            f"process{'es' * (len(missing) > 1)} {numbers(missing)} of {self._own.n_processes}, which must come to "
            f"port {self._listener.getsockname()[1]} of {self._own.host}"
        )

    def _hear(self, source: socket.socket, selector: selectors.BaseSelector) -> str | None:
        """Takes in what has arrived; what is wrong with it, if something is."""
        if source is self._listener:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
                self._unread[connection] = b""
            return None
        try:
            data = source.recv(4096)
        except OSError:
            data = b""
        text = self._unread.get(source, b"") + data
        if not data or len(text) > _LONGEST_LINE:
            self._drop(source, selector)
        elif b"\n" not in text:
            self._unread[source] = text
        elif (new := _arrival(text)) is None or new.start != self._own.start:
            self._drop(source, selector)  # a stranger, or a process that an earlier start has left behind
        elif sentence := misfit(self._own, new, self._there(new.rank)):
            self._came[source] = new
            return sentence
        else:
            self._came[source] = new
        return None

    def _there(self, rank: int) -> Arrival | None:
        return next((each for each in (self._own, *self._came.values()) if each.rank == rank), None)

    def _drop(self, connection: socket.socket, selector: selectors.BaseSelector) -> None:
        selector.unregister(connection)
        connection.close()
        self._unread.pop(connection, None)
        self._came.pop(connection, None)

    def _answer_all(self, answer: Mapping[str, Json]) -> Mapping[str, object]:
        for connection in self._came:
            _send(connection, answer)
        return answer


def _attend(host: str, port: int, own: Arrival, deadline: float, seconds: float) -> Mapping[str, Json]:
    """The other processes' side: says who it is, and waits for the answer; comes again where there is none."""
    why, report_at = "", time.monotonic() + REPORT_SECONDS
    while (now := time.monotonic()) < deadline:
        if why and now >= report_at:
            _say(f"Process {own.rank} is still waiting for process 0 at {host}:{port}: {why}.")
            report_at = now + REPORT_SECONDS
        try:
            with socket.create_connection((host, port), timeout=min(10.0, deadline - now)) as connection:
                _send(connection, asdict(own))
                connection.settimeout(max(0.1, deadline + 5 - time.monotonic()))  # the first one's own end comes first
                if answer := _read_line(connection):
                    return answer
            why = "what listens there does not know this process; perhaps another program, or another start of the job"
        except socket.gaierror as error:
            why = f"this name is not known ({error.strerror})"
        except OSError as error:
            why = str(error.strerror or error)
        time.sleep(min(_RETRY_SECONDS, max(0.0, deadline - time.monotonic())))
    return {"late": f"Process {own.rank} waited {seconds:.0f} s for process 0 at {host}:{port}: {why or 'no answer'}."}


def _listener(port: int) -> socket.socket:
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
        return socket.create_server(("", port), backlog=1024)
    except OSError as error:
        raise LaunchError(
            f"Process 0 cannot listen at port {port} of {socket.gethostname()}: {error.strerror}; end what uses it, or "
            "choose another port by MASTER_PORT or JAX_COORDINATOR_PORT."
        ) from None


def _arrival(text: bytes) -> Arrival | None:
    try:
        return Arrival(**json.loads(text.split(b"\n")[0]))
    except (ValueError, TypeError):
        return None


def _send(connection: socket.socket, answer: Mapping[str, Json]) -> None:
    with contextlib.suppress(OSError):  # one that has left hears nothing
        connection.setblocking(True)
        connection.sendall(json.dumps(answer).encode() + b"\n")


def _read_line(connection: socket.socket) -> dict[str, Json] | None:
    with connection.makefile("rb") as file:
        line = file.readline(_LONGEST_LINE)
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None


def _machine(host: str) -> str:
    """Which machine or container this is: processes of one see the same GPUs."""
    parts = [host]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/mnt"))
    return " ".join(parts)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
