"""How a text becomes rows of `seq_len + 1` tokens, any of which can be made by its number.

A row whose documents are kept apart says so beside its tokens: `segment_ids` (the number of each token's document, 0
for padding), `positions` (its place in what the row has of it) and `loss_mask` (1 where it counts as a target).
"""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np

from jzero.errors import ConfigError
from jzero.train.data.documents import Stretches
from jzero.train.data.packing import Items, best_fit, cut_long

FIELDS = ("tokens", "segment_ids", "positions", "loss_mask")

Row = dict[str, np.ndarray]


class Rows(Protocol):
    """Rows by number.

    Attributes:
        n_rows: how many there are.
        seq_len: tokens that a model sees at once.
        fingerprint: tells texts and their rows apart.
        full: whether a row has all of `FIELDS`, and not tokens alone.
    """

    n_rows: int
    seq_len: int
    fingerprint: str
    full: bool

    def row(self, number: int) -> Row:
        """One row: `int32[seq_len + 1]` for each of its fields."""
        ...


class _Span(NamedTuple):
    """What a row has of a document."""

    document: int
    start: int
    stop: int


class SplitRows:
    """Concatenate and split: rows follow each other through the text, each starting where the last one's targets end.

    Args:
        text: the text.
        seq_len: tokens that a model sees at once.
        apart: whether documents in a row do not see each other; the last row is then filled up, and otherwise left
            out.

    Raises:
        ConfigError: the text is shorter than one row.
    """

    def __init__(self, text: Stretches, seq_len: int, *, apart: bool = False):
        self._text, self.seq_len, self._apart = text, seq_len, apart
        self.full = apart or text.documents.masked
        self.n_rows = max(0, -(-(len(text) - 1) // seq_len) if self.full else (len(text) - 1) // seq_len)
        if self.n_rows < 1:
            unit, least = text.documents.unit, 2 if self.full else seq_len + 1
            raise ConfigError(
                f"the {text.name} is {len(text)} {unit} long; data.seq_len {seq_len} needs at least {least}."
            )
        self.fingerprint = text.fingerprint + "a" * apart

    def row(self, number: int) -> Row:
        """One row."""
        start, text = number * self.seq_len, self._text
        spans = text.spans(start, min(start + self.seq_len + 1, len(text)))
        return _assembled(
            text, (_Span(int(text.which[n]), a, b) for n, a, b in spans), self.seq_len, self.full, self._apart
        )


class PackedRows:
    """Best fit: whole documents, as many as fit into each row, which do not see each other.

    A document that is longer than a row is cut into pieces, of which each begins with the last token of the one before.

    Args:
        text: the text.
        seq_len: tokens that a model sees at once.

    Attributes:
        n_cut: documents that are cut.
        padding: the share of the rows that is filled up.

    Raises:
        ConfigError: the text has no token to predict.
    """

    full = True

    def __init__(self, text: Stretches, seq_len: int):
        self._text, self.seq_len = text, seq_len
        pieces = cut_long(text.starts, text.stops, seq_len)
        self.n_cut = int((text.stops - text.starts > seq_len + 1).sum())
        if not len(pieces.which):
            raise ConfigError(f"the {text.name} has no document of two {text.documents.unit} or more.")
        packing = best_fit(pieces.lengths, seq_len + 1)
        self._items = Items(*(part[packing.order] for part in pieces))
        self._firsts = packing.firsts
        self.n_rows = len(packing.firsts) - 1
        self.padding = 1 - float(pieces.lengths.sum()) / (self.n_rows * (seq_len + 1))
        self.fingerprint = text.fingerprint + "b"

    def row(self, number: int) -> Row:
        """One row."""
        items, which = self._items, self._text.which
        spans = (
            _Span(int(which[items.which[i]]), int(items.starts[i]), int(items.stops[i]))
            for i in range(self._firsts[number], self._firsts[number + 1])
        )
        return _assembled(self._text, spans, self.seq_len, full=True, apart=True)


def _assembled(text: Stretches, spans: Iterable[_Span], seq_len: int, full: bool, apart: bool) -> Row:
    row = {name: np.zeros(seq_len + 1, np.int32) for name in (FIELDS if full else FIELDS[:1])}
    at = 0
    for number, span in enumerate(spans, 1):
        here = slice(at, at := at + span.stop - span.start)
        row["tokens"][here] = text.documents.read(*span)
        if full:
            row["segment_ids"][here] = number if apart else 1
            row["positions"][here] = np.arange(here.stop - here.start) + (0 if apart else here.start)
            row["loss_mask"][here] = text.documents.counted(*span)
    return row


def as_full(row: Row) -> Row:
    """A row of tokens alone with all the fields: one document, of which everything counts."""
    if len(row) > 1:
        return row
    ones = np.ones_like(row["tokens"])
    return {**row, "segment_ids": ones, "positions": np.arange(len(ones), dtype=np.int32), "loss_mask": ones}


def digest(*parts: object) -> str:
    """Sixteen hexadecimal digits that depend on all parts."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
