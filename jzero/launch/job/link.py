"""The connection to one agent, whatever it goes over; what arrives is put into one queue for all of them."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import IO, NamedTuple

from jzero.base.types import Json
from jzero.launch.wire import LONGEST_MESSAGE, PING_SECONDS, Lines, Message, packed, unpacked

_TAIL = 5
_MOST_UNHEARD = 10_000
"""With so many words waiting to be heard no more are taken from an agent, so that a signal is heard soon."""


class Arrived(NamedTuple):
    """Something that an agent has said, or what has become of it.

    Attributes:
        node: the number of its node; -1 for the launcher itself.
        message: an event; `gone` when nothing more comes, `noise` for a line that is none.
    """

    node: int
    message: dict[str, Json]


class Link:
    """An agent, or the way to one.

    Args:
        node: its number.
        host: its host's name.
        command: what starts it.
        arrivals: where all that it says is put.

    Raises:
        OSError: the command cannot be started.

    Attributes:
        heard: when something came from it last, by `time.monotonic`, whether or not anybody has taken it in.
    """

    def __init__(self, node: int, host: str, command: Sequence[str], arrivals: "SimpleQueue[Arrived]"):
        self.node, self.host, self._name = node, host, os.path.basename(command[0])
        self._arrivals, self._orders = arrivals, SimpleQueue[bytes | None]()
        self._said = deque[str](maxlen=_TAIL)
        self._closed = False
        self.heard = time.monotonic()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        errors = self._thread(self._hear_errors, self._process.stderr)
        self._thread(self._hear, self._process.stdout, errors)
        self._thread(self._write, self._process.stdin)

    def send(self, message: Message) -> None:
        """Sends an order; one that has gone does not hear it."""
        self._orders.put(packed(message))

    @property
    def why_gone(self) -> str:
        """What the way to the agent said last, for people."""
        status = self._process.poll()
        ended = f"{self._name} ended with status {status}" if status is not None else f"{self._name} still runs"
        return f"{ended}: {'; '.join(self._said)}" if self._said else ended

    def close(self) -> None:
        """Ends the orders, at which the agent kills what it still runs."""
        self._closed = True
        self._orders.put(None)

    def wait(self, deadline: float) -> None:
        """Waits until it has ended; kills the way to it if it has not by then.

        Args:
            deadline: by `time.monotonic`.
        """
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _thread(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True, name=f"agent on {self.host}")
        thread.start()
        return thread

    def _hear(self, pipe: IO[bytes], errors: threading.Thread) -> None:
        lines = Lines(LONGEST_MESSAGE)
        while data := os.read(pipe.fileno(), 1 << 16):
            self.heard = time.monotonic()
            for line in lines.add(data):
                while self._arrivals.qsize() > _MOST_UNHEARD and not self._closed:
                    time.sleep(0.01)
                    self.heard = time.monotonic()
                text = {"event": "noise", "text": line.decode(errors="replace")}
                self._arrivals.put(Arrived(self.node, unpacked(line) or text))
        pipe.close()
        self._process.wait()
        errors.join(1.0)
        self._arrivals.put(Arrived(self.node, {"event": "gone"}))

    def _hear_errors(self, pipe: IO[bytes]) -> None:
        lines = Lines()
        while data := os.read(pipe.fileno(), 1 << 16):
            for line in lines.add(data):
                text = line.decode(errors="replace").rstrip()
                if text:
                    self._said.append(text)
                    self._arrivals.put(Arrived(self.node, {"event": "noise", "text": text}))
        pipe.close()

    def _next_order(self) -> bytes | None:
        try:
            return self._orders.get(timeout=PING_SECONDS)
        except Empty:  # the launcher may be waiting for a console, of which an agent must not die
            return packed({"do": "ping"})

    def _write(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError):
            while (data := self._next_order()) is not None:
                pipe.write(data)
                pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()
