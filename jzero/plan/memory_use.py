"""How much memory a step takes at each moment, and whose it is: what estimates and compiled programs both tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

PARTS = ("parameters", "optimizer_state", "gradients", "gathered_weights", "activations", "rest")
"""What fills a GPU's memory, in the words of a plan."""


class Holder(NamedTuple):
    """What fills memory at the peak.

    Attributes:
        part: one of `PARTS`.
        name: JAX's name stack, or the argument's name; empty where XLA recorded none.
        shape: dtype and dimensions.
        n_arrays: how many alike.
        n_bytes: of all of them.
    """

    part: str
    name: str
    shape: str
    n_arrays: int
    n_bytes: int


class Phase(NamedTuple):
    """A stretch of the schedule: "forward", "backward" or "update", from its first moment on."""

    name: str
    start: int


@dataclass(frozen=True)
class MemoryUse:
    """Bytes that are alive on one GPU at each moment of a step; a loop's body is there once.

    Attributes:
        n_bytes: for each of `PARTS` as many numbers as there are moments.
        holders: what fills memory at the peak, the largest first.
        phases: where the passes begin.
        allocated: what the compiler sets aside for the whole step: the peak and the gaps between arrays.
    """

    n_bytes: Mapping[str, np.ndarray]
    holders: tuple[Holder, ...]
    phases: tuple[Phase, ...]
    allocated: int

    @property
    def total(self) -> np.ndarray:
        """Bytes of all parts, at each moment."""
        return np.sum(list(self.n_bytes.values()), axis=0)

    @property
    def peak_at(self) -> int:
        """The first moment at which most is alive."""
        return int(self.total.argmax())

    @property
    def peak(self) -> int:
        """The most that is alive at once."""
        return int(self.total.max())
