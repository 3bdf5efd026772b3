"""What launcher and agent say to each other: a JSON object a line, marked, since login shells print lines of their own.

Orders of the launcher have `do`: `port`, `start`, `signal`, `end`, `ping`. Events of an agent have `event`: `hello`,
`port`, `line`, `beat`, `exit`, `signal`, `say`, `alive`.
"""

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress

from jzero.base.types import Json

Message = Mapping[str, Json]

MARK = b"\x1e"
PING_SECONDS = 10.0
"""How often each side says that it is there."""

SILENCE_SECONDS = 120.0
"""How long a side that says nothing is believed to be there."""

LONGEST_MESSAGE = 1 << 26
"""A message may be so long: a command and an environment are up to some megabytes."""

_LONGEST_LINE = 1 << 16
_MOST_WAITING = 8 << 20


def packed(message: Message) -> bytes:
    r"""A message as it is sent.

    Example:
        >>> packed({"do": "ping"})
        b'\x1e{"do": "ping"}\n'
    """
    return MARK + json.dumps(message).encode() + b"\n"


def unpacked(line: bytes) -> dict[str, Json] | None:
    """The message of a line, also after what somebody has printed without ending the line; None where there is none.

    Example:
        >>> unpacked(packed({"do": "ping"})), unpacked(b"Welcome to node1!")
        ({'do': 'ping'}, None)
    """
    _, mark, text = line.rpartition(MARK)
    if not mark:
        return None
    try:
        message = json.loads(text)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


class Lines:
    """Cuts what arrives in pieces into lines; a very long one is cut too."""

    def __init__(self, longest: int = _LONGEST_LINE):
        self._rest, self._longest = b"", longest

    def add(self, data: bytes) -> Iterator[bytes]:
        """The lines that are whole now, without their ends."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        yield from whole
        while len(self._rest) > self._longest:
            yield self._rest[: self._longest]
            self._rest = self._rest[self._longest :]

    def rest(self) -> Iterator[bytes]:
        """What is left when nothing more comes."""
        if self._rest:
            yield self._rest
        self._rest = b""


class Outbox:
    """Sends messages to a pipe that nobody may be reading: training never waits for a console.

    Args:
        descriptor: the pipe's.
    """

    def __init__(self, descriptor: int):
        self._descriptor, self._waiting = descriptor, deque[bytes]()
        self._n_bytes = self._n_dropped = 0
        os.set_blocking(descriptor, False)

    def put(self, message: Message) -> None:
        """Sends a message, now or later; lines of output are dropped, and counted, where too many wait."""
        if self._n_bytes > _MOST_WAITING and message.get("event") == "line":
            self._n_dropped += 1
            return
        if self._n_dropped and (self._n_bytes < _MOST_WAITING // 2 or message.get("event") == "exit"):
            self._add({"event": "say", "text": f"{self._n_dropped} lines are not shown here; they are in the logs."})
            self._n_dropped = 0
        self._add(message)
        self.flush()

    def flush(self) -> bool:
        """Sends what it can; returns whether nothing waits any more."""
        with suppress(BlockingIOError):
            while self._waiting:
                sent = os.write(self._descriptor, self._waiting[0])
                self._n_bytes -= sent
                if sent < len(self._waiting[0]):
                    self._waiting[0] = self._waiting[0][sent:]
                else:
                    self._waiting.popleft()
        return not self._waiting

    def _add(self, message: Message) -> None:
        self._waiting.append(packed(message))
        self._n_bytes += len(self._waiting[-1])
