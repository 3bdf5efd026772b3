"""What the processes of a job have told of their progress, and which of them is behind."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jzero.base.types import Json
from jzero.launch.heartbeat import BEAT_SECONDS

SILENT_SECONDS = 3 * BEAT_SECONDS
"""A process that has told nothing for so long is stopped, or cannot run its threads."""

MARGIN_SECONDS = 60.0
"""How much longer than the limit that a process has for itself the launcher waits for one that says nothing."""

WAITS = re.compile("waiting for the devices|starting the step or waiting")
"""The phases in which a process waits for the others."""


@dataclass(frozen=True)
class Beat:
    """What a process said last.

    Attributes:
        step: the step that it has begun.
        phase: what it did, in words; empty for what may take any time.
        seconds: for how long it had done that.
        limit: for how long it may; 0 for any time.
        at: when it said so, by the launcher's clock.
    """

    step: int
    phase: str
    seconds: float
    limit: float
    at: float


@dataclass
class Board:
    """What is known of a job.

    Attributes:
        beats: of each process.
        batch: samples of a step, of all processes together; 0 while nobody knows.
        micro: samples of a device and micro-batch; 0 likewise.
        devices: of all processes together; 0 likewise.
        saved: the step of the newest checkpoint that this attempt has completed; -1 for none.
    """

    beats: dict[int, Beat] = field(default_factory=dict)
    batch: int = 0
    micro: int = 0
    devices: int = 0
    saved: int = -1

    @property
    def begun(self) -> bool:
        """Whether any process has begun a step."""
        return any(beat.step for beat in self.beats.values())

    def hear(self, message: Mapping[str, Json], now: float) -> None:
        """Takes in what a process says."""
        for name in ("batch", "micro", "devices"):
            setattr(self, name, message.get(name) or getattr(self, name))
        self.saved = max(self.saved, message.get("saved", -1))
        if "step" in message:
            said = {name: message[name] for name in ("step", "phase", "seconds", "limit")}
            self.beats[message["rank"]] = Beat(**said, at=now)

    def frozen(self, now: float) -> int | None:
        """A process that has said nothing for longer than it may take, and not even ended itself."""
        return next(
            (rank for rank, beat in self.beats.items() if beat.limit and _over(beat, now) > MARGIN_SECONDS), None
        )

    def behind(self, now: float) -> tuple[int, str] | None:
        """The process that the others wait for, and what is known of it; None if that cannot be told.

        Args:
            now: by the launcher's clock.
        """
        if len(self.beats) < 2:
            return None
        newest = max(beat.at for beat in self.beats.values())
        silent = [rank for rank, beat in self.beats.items() if newest - beat.at > SILENT_SECONDS]
        if silent:
            beat = self.beats[silent[0]]
            return silent[0], f"it has said nothing for {now - beat.at:.0f} s, last at step {beat.step}, {_doing(beat)}"
        least, most = (pick(beat.step for beat in self.beats.values()) for pick in (min, max))
        late = [rank for rank, beat in self.beats.items() if beat.step == least]
        busy = [rank for rank in late if not WAITS.search(self.beats[rank].phase)]
        which = busy if len(busy) == 1 or (least < most and busy) else late if least < most else []
        if not which:
            return None
        beat = self.beats[which[0]]
        others = f"the others are at step {most}" if least < most else "the others wait for the devices"
        seconds = beat.seconds + now - beat.at
        return which[0], f"it is at step {beat.step}, {_doing(beat)} for {seconds:.0f} s, where {others}"


def _over(beat: Beat, now: float) -> float:
    return beat.seconds + now - beat.at - beat.limit


def _doing(beat: Beat) -> str:
    return beat.phase or "compiling"
