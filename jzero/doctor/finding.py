"""One thing that a look at a machine has found."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["fine", "note", "wrong"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: "versions", "devices", "memory", "environment" or "network".
        what: a fact, such as "JAX 0.10.2".
        level: "wrong" where training would fail, hang or be much slower than it need be; "note" where it may.
        advice: what it means and what to do; empty for what is fine.
    """

    topic: str
    what: str
    level: Level = "fine"
    advice: str = ""
