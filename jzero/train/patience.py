"""Early stopping: how long a run goes on without a lower validation loss."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from jzero.base.types import Json


@dataclass
class Patience:
    """What has been heard so far.

    Attributes:
        limit: evaluations without a lower loss after which a run ends; None for no end.
        threshold: by how much a loss must be lower.
        best: the lowest loss.
        waited: evaluations since then.

    Example:
        >>> patience = Patience(limit=2)
        >>> [patience.heard(loss) for loss in (3.0, 2.0, 2.5, 2.0)]
        [False, False, False, True]
    """

    limit: int | None = None
    threshold: float = 0.0
    best: float = math.inf
    waited: int = 0

    @classmethod
    def of(cls, saved: Json, limit: int | None, threshold: float) -> "Patience":
        """Goes on from what a checkpoint has, if it has something."""
        facts = saved if isinstance(saved, Mapping) else {}
        best, waited = facts.get("best"), facts.get("waited")
        if isinstance(best, int | float) and isinstance(waited, int):
            return cls(limit, threshold, float(best), waited)
        return cls(limit, threshold)

    def heard(self, loss: float) -> bool:
        """Takes up the loss of an evaluation; returns whether it is enough."""
        if loss < self.best - self.threshold:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
        return self.is_over

    @property
    def is_over(self) -> bool:
        """Whether the run is to end."""
        return self.limit is not None and self.waited >= self.limit
