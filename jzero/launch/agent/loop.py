"""The agent's loop: orders in, output, heartbeats and exits out, and nothing left running at its end."""

import contextlib
import os
import platform
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from jzero.base.types import Json
from jzero.base.version import VERSION
from jzero.launch.agent import machine
from jzero.launch.agent.child import Child, log_file
from jzero.launch.agent.orders import Orders, Process, read_orders, variables_of
from jzero.launch.heartbeat import VARIABLE
from jzero.launch.wire import LONGEST_MESSAGE, PING_SECONDS, SILENCE_SECONDS, Lines, Outbox, unpacked

_TICK_SECONDS = 0.1
_LINGER_SECONDS = 2.0
"""How long a process may leave its output open to others after its end; and how long the last words may take."""

_SIGNAL_SECONDS = 1.0
"""Where the cluster itself sends signals to all processes of a node, how long its own may come after the launcher's."""


class Agent:
    """An agent.

    Args:
        orders: the descriptor that orders arrive at.
        events: the descriptor that events go to.
        signals_reach_all: whether a signal that reaches this process has reached its processes too, as under `srun`.
    """

    def __init__(self, orders: int, events: int, *, signals_reach_all: bool = False):
        self._in, self._out, self._lines = orders, Outbox(events), Lines(LONGEST_MESSAGE)
        self._reach_all = signals_reach_all
        self._children: list[Child] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(orders, selectors.EVENT_READ)
        self._kill_at: float | None = None
        self._heard, self._said = time.monotonic(), time.monotonic()
        self._got: list[int] = []
        self._n_told = 0
        self._to_send: list[tuple[float, int]] = []
        self._scratch = Path(tempfile.mkdtemp(prefix="jzero-agent-"))
        self._beats, self._beat_lines = -1, Lines()

    def run(self) -> None:
        """Serves until the orders end, which ends the processes too."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: self._got.append(number))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the end of the orders says it
        self._hello()
        try:
            while self._step():
                pass
        finally:
            for child in self._children:
                if child.status is None:
                    child.send(signal.SIGKILL)
            shutil.rmtree(self._scratch, ignore_errors=True)
            deadline = time.monotonic() + _LINGER_SECONDS
            with contextlib.suppress(OSError):
                while not self._out.flush() and time.monotonic() < deadline:
                    time.sleep(_TICK_SECONDS)

    def _hello(self) -> None:
        self._out.put(
            {
                "event": "hello",
                "version": VERSION,
                "python": platform.python_version(),
                "host": socket.gethostname(),
                "gpus": machine.n_gpus(os.environ),
                "address": machine.address(os.environ),
                "pid": os.getpid(),
            }
        )

    def _step(self) -> bool:
        """One round; returns whether there is another one."""
        for key, _ in self._selector.select(_TICK_SECONDS):
            if key.fd == self._in:
                if not self._hear():
                    return False
            elif key.fd == self._beats:
                self._take_beats()
            else:
                self._show(next(child for child in self._children if child.output == key.fd))
        self._tend()
        now = time.monotonic()
        if now - self._said > PING_SECONDS:
            self._out.put({"event": "alive"})
            self._said = now
        with contextlib.suppress(BrokenPipeError):
            self._out.flush()
            return now - self._heard < SILENCE_SECONDS
        return False

    def _hear(self) -> bool:
        data = os.read(self._in, 1 << 16)
        self._heard = time.monotonic()
        for line in self._lines.add(data):
            if (message := unpacked(line)) is not None:
                self._obey(message)
        return bool(data)

    def _obey(self, message: Mapping[str, Json]) -> None:
        match message.get("do"):
            case "port":
                self._out.put({"event": "port", "port": machine.free_port()})
            case "start":
                self._start(read_orders(message))
            case "signal":
                self._to_send.append((time.monotonic() + _SIGNAL_SECONDS * self._reach_all, int(message["number"])))
            case "end":
                for child in self._running:
                    child.send(signal.SIGTERM)
                    child.send(signal.SIGCONT)  # one that is stopped would not hear it
                self._kill_at = time.monotonic() + float(message["grace"])

    def _start(self, orders: Orders) -> None:
        fifo = self._scratch / "beats"
        os.mkfifo(fifo, 0o600)
        self._beats = os.open(fifo, os.O_RDWR | os.O_NONBLOCK)  # as a writer too, so that it never ends
        self._selector.register(self._beats, selectors.EVENT_READ)
        visible = machine.visible_gpus(os.environ)
        for process in orders.processes:
            environment = variables_of(orders, process, visible, os.environ) | {VARIABLE: str(fifo)}
            names = tuple(visible[gpu] if visible else str(gpu) for gpu in process.gpus)
            try:
                child = Child(
                    orders.command,
                    process.rank,
                    environment=environment,
                    folder=orders.folder,
                    log=self._log(orders, process),
                    cpus=frozenset(machine.cpus_near(names)) if orders.bind else frozenset(),
                )
            except (OSError, subprocess.SubprocessError) as error:
                text = f"cannot start {orders.command[0]} in {orders.folder}: {getattr(error, 'strerror', '') or error}"
                self._out.put({"event": "exit", "rank": process.rank, "status": 127, "pid": 0, "tail": [text]})
                continue
            self._children.append(child)
            self._selector.register(child.output, selectors.EVENT_READ)

    def _log(self, orders: Orders, process: Process) -> BinaryIO | None:
        if not orders.logs:
            return None
        file = log_file(Path(orders.folder, orders.logs), process.rank)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            log = file.open("ab", buffering=0)
            when = time.strftime("%Y-%m-%d %H:%M:%S")
            log.write(f"--- {when}, launch {orders.launch}, attempt {orders.attempt} ---\n".encode())
        except OSError as error:
            self._out.put({"event": "say", "text": f"{file} cannot be written: {error.strerror}; it is left out."})
            return None
        return log

    @property
    def _running(self) -> list[Child]:
        return [child for child in self._children if child.status is None]

    def _show(self, child: Child) -> None:
        for line in child.read():
            self._out.put({"event": "line", "rank": child.rank, "text": line})
        if child.log_error:
            self._out.put({"event": "say", "text": f"The log of process {child.rank} is lost: {child.log_error}."})
            child.log_error = ""

    def _take_beats(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for line in self._beat_lines.add(os.read(self._beats, 1 << 16)):
                if (beat := unpacked(line)) is not None:
                    self._out.put({"event": "beat", "beat": beat})

    def _tend(self) -> None:
        """Looks who has ended, and does what is due."""
        now = time.monotonic()
        for number in self._got[self._n_told :]:
            self._out.put({"event": "signal", "number": number})
            self._n_told += 1
        due, self._to_send = [n for at, n in self._to_send if at <= now], [s for s in self._to_send if s[0] > now]
        for number in due:
            if not (self._reach_all and number in self._got):
                for child in self._running:
                    child.send(number)
        for child in self._running:
            if self._kill_at is not None and now >= self._kill_at:
                child.send(signal.SIGKILL)
            if child.ended():
                self._take_beats()
                self._selector.unregister(child.output)
                for line in child.rest():
                    self._out.put({"event": "line", "rank": child.rank, "text": line})
                self._out.put(
                    {
                        "event": "exit",
                        "rank": child.rank,
                        "status": child.status,
                        "pid": child.pid,
                        "tail": list(child.tail),
                    }
                )
