"""Batches of rows; a batch is a pure function of its index.

The position of a run in its data is therefore one integer, a checkpoint needs no iterator state, and each process takes
its own rows of the same batch. This is the random access that grain's `MapDataset` offers, without the dependency.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from jzero.errors import ConfigError
from jzero.train.data.order import Order, Shares
from jzero.train.data.rows import Row, Rows, as_full, digest

Batch = dict[str, np.ndarray]


class Batches(Protocol):
    """Batches of a text, or of a mixture of texts.

    Attributes:
        n_windows: rows of an epoch.
        seq_len: tokens that a model sees at once.
        fingerprint: tells texts apart, their rows and their shares.
    """

    n_windows: int
    seq_len: int
    fingerprint: str

    def batch(self, index: int, rows: int, *, part: int = 0, n_parts: int = 1) -> Batch:
        """One batch, or one process's part of it.

        Args:
            index: which batch, from 0; there is no last one, epochs follow each other without a seam.
            rows: rows of the whole batch.
            part: which part, below `n_parts`.
            n_parts: how many equal parts the batch is divided into.

        Returns:
            `{"tokens": int32[rows / n_parts, seq_len + 1]}`, and the other fields of `jzero.train.data.rows` where
            documents are kept apart or not every token counts.
        """
        ...


class Windows:
    """The rows of one text, in a new order in every epoch.

    Args:
        rows: by number.
        seed: whole numbers that choose the orders.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from jzero.train.data.documents import FileDocuments, divide
        >>> from jzero.train.data.files import NamedFile
        >>> from jzero.train.data.rows import SplitRows
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> _ = path.write_text("to be, or not to be")
        >>> text, _ = divide(FileDocuments([NamedFile("a.txt", path)]), 0)
        >>> windows = Windows(SplitRows(text, seq_len=6), seed=[0])
        >>> windows.n_windows, windows.batch(0, 2)["tokens"].shape
        (3, (2, 7))
    """

    def __init__(self, rows: Rows, seed: Sequence[int]):
        self.rows = rows
        self.n_windows, self.seq_len, self.fingerprint = rows.n_rows, rows.seq_len, rows.fingerprint
        self._order = Order(rows.n_rows, seed)

    def batch(self, index: int, rows: int, *, part: int = 0, n_parts: int = 1) -> Batch:
        """One batch, or one process's part of it; see `Batches`."""
        return _stacked([self.row(place) for place in _places(index, rows, part, n_parts)])

    def row(self, place: int) -> Row:
        """The row that comes at a place."""
        return self.rows.row(self._order.at(place))


class Mixture:
    """Several texts, each with its share of the rows and in its own epochs.

    Args:
        parts: the texts, of one `seq_len`.
        weights: their shares, in proportion.
        seed: of the order in which they take turns.
    """

    def __init__(self, parts: Sequence[Windows], weights: Sequence[float], seed: int):
        self.parts, self._shares = parts, Shares(weights, seed)
        self.n_windows, self.seq_len = sum(part.n_windows for part in parts), parts[0].seq_len
        self.fingerprint = digest(*(part.fingerprint for part in parts), *self._shares.counts)
        self._full = any(part.rows.full for part in parts)

    def batch(self, index: int, rows: int, *, part: int = 0, n_parts: int = 1) -> Batch:
        """One batch, or one process's part of it; see `Batches`."""
        return _stacked([self._row(place) for place in _places(index, rows, part, n_parts)])

    def _row(self, place: int) -> Row:
        part, number = self._shares.at(place)
        row = self.parts[part].row(number)
        return as_full(row) if self._full else row


def _places(index: int, rows: int, part: int, n_parts: int) -> range:
    if rows % n_parts:
        raise ConfigError(f"a batch of {rows} rows cannot be divided among {n_parts} processes.")
    own = rows // n_parts
    first = index * rows + part * own
    return range(first, first + own)


def _stacked(rows: Sequence[Row]) -> Batch:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}
