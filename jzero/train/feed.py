"""Where the loop gets its batches from: a text, cut into rows, or whatever a program gives.

Both say where a run is in them, for its checkpoints, and go on from there.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import jax
import numpy as np

from jzero.base.types import Batch, Json
from jzero.train.data import Corpus
from jzero.train.position import Facts

VALIDATION_WINDOWS = 256
"""An evaluation reads this many windows of the validation text, the same ones every time; fewer where it would take a
batch that is not full of rows without a mask."""

Log = Callable[[str], None]


class Weighted(NamedTuple):
    """A batch to evaluate.

    Attributes:
        batch: this process's part of it.
        weight: what the whole of it counts.
    """

    batch: Batch
    weight: float


class Feed(Protocol):
    """A run's batches.

    Attributes:
        seq_len: tokens that are predicted in each row; 0 if rows have none.
        unit: what a loss is per.
    """

    seq_len: int
    unit: str

    def batch(self, index: int, rows: int) -> Batch:
        """This process's part of a batch of so many rows."""
        ...

    def validation(self, rows: int) -> Iterator[Weighted]:
        """Batches of about so many rows to evaluate, the same ones each time; none where nothing is to be evaluated."""
        ...

    def facts(self, rows: int, seed: int, n_steps: int) -> Facts:
        """What decides the order of the batches and the schedule."""
        ...

    def position(self, next_batch: int) -> dict[str, Json]:
        """What a checkpoint must have besides these facts, to go on with this batch; every process must call it."""
        ...

    def go_on(self, saved: Mapping[str, Json], next_batch: int, log: Log) -> None:
        """Goes to a batch, with what a checkpoint has, which is empty for a new run."""
        ...


class CorpusFeed:
    """The batches of a text, each a function of its index, so that there is nowhere to go to."""

    def __init__(self, corpus: Corpus):
        self._corpus = corpus
        self.seq_len, self.unit = corpus.train.seq_len, corpus.unit.removesuffix("s")

    def batch(self, index: int, rows: int) -> Batch:
        """See `Feed`."""
        return self._corpus.train.batch(index, rows, part=jax.process_index(), n_parts=jax.process_count())

    def validation(self, rows: int) -> Iterator[Weighted]:
        """See `Feed`."""
        text, own = self._corpus.validation, rows // jax.process_count()
        n = min(VALIDATION_WINDOWS, text.n_windows)
        if n < rows and not self._corpus.full and jax.process_count() == 1:
            rows = own = n  # each once; several processes take equal parts, and so some twice
        for index in range(-(-n // rows) if self._corpus.full else max(1, n // rows)):
            batch = text.batch(index, rows)  # whole, to see what all of it counts
            if self._corpus.full:  # rows of padding fill up the last one
                batch = {name: np.where(np.arange(rows)[:, None] < n - index * rows, x, 0) for name, x in batch.items()}
            part = {name: x[jax.process_index() * own :][:own] for name, x in batch.items()}
            yield Weighted(part, n_targets(batch))

    def facts(self, rows: int, seed: int, n_steps: int) -> Facts:
        """See `Feed`."""
        corpus = self._corpus
        return Facts(rows, self.seq_len, seed, corpus.fingerprint, n_steps, corpus.train.n_windows)

    def position(self, next_batch: int) -> dict[str, Json]:
        """See `Feed`."""
        return {}

    def go_on(self, saved: Mapping[str, Json], next_batch: int, log: Log) -> None:
        """See `Feed`."""


def n_targets(batch: Mapping[str, np.ndarray]) -> float:
    """How many tokens of a batch are predicted and count, as `next_token_loss` counts them.

    Example:
        >>> n_targets({"tokens": np.zeros((2, 9))})
        16.0
        >>> segment_ids, loss_mask = np.array([[1, 1, 2, 2]]), np.ones((1, 4))
        >>> n_targets({"tokens": np.zeros((1, 4)), "segment_ids": segment_ids, "loss_mask": loss_mask})
        2.0
    """
    counts = np.asarray(batch["loss_mask"])[:, 1:] if "loss_mask" in batch else np.ones_like(batch["tokens"][:, 1:])
    if "segment_ids" in batch:
        segments = np.asarray(batch["segment_ids"])
        counts = counts * (segments[:, 1:] == segments[:, :-1]) * (segments[:, 1:] != 0)
    return float(counts.sum())
