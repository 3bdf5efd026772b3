"""Which documents lie in which row: pure functions of their lengths."""

from typing import NamedTuple

import numpy as np


class Items(NamedTuple):
    """Pieces of stretches.

    Attributes:
        which: the stretch of each.
        starts: where in its document it begins.
        stops: where in its document it ends.
    """

    which: np.ndarray
    starts: np.ndarray
    stops: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each."""
        return self.stops - self.starts


class Packing(NamedTuple):
    """Which items lie in which row.

    Attributes:
        order: the items, row after row.
        firsts: where in it each row begins, and at last where the last one ends.
    """

    order: np.ndarray
    firsts: np.ndarray


def cut_long(starts: np.ndarray, stops: np.ndarray, seq_len: int) -> Items:
    """Cuts what is longer than `seq_len + 1` tokens, and leaves out what has no token to predict.

    A piece begins with the last token of the one before, so that every token but a document's first is a target once.

    Example:
        >>> cut_long(np.array([0, 0, 0]), np.array([3, 8, 1]), seq_len=4).starts.tolist()
        [0, 0, 4]
    """
    lengths = stops - starts
    counts = np.maximum(0, -(-(lengths - 1) // seq_len))
    which = np.repeat(np.arange(len(lengths)), counts)
    number = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    first = starts[which] + number * seq_len
    return Items(which, first, np.minimum(first + seq_len + 1, stops[which]))


def best_fit(lengths: np.ndarray, room: int) -> Packing:
    """Puts each item, the longest first, into the row that it fills best.

    Args:
        lengths: of the items, each from 1 up to `room`.
        room: of a row.

    Example:
        >>> packing = best_fit(np.array([2, 5, 3, 4]), room=7)
        >>> packing.order.tolist(), packing.firsts.tolist()
        ([1, 0, 3, 2], [0, 2, 4])
    """
    longest_first = np.argsort(-lengths, kind="stable")
    rows_with: dict[int, list[int]] = {}  # the room that is left -> rows that have it
    left_somewhere = 0  # bit r: a row has the room r left
    row_of, n_rows = np.empty(len(lengths), np.int64), 0
    for item, length in zip(longest_first.tolist(), lengths[longest_first].tolist(), strict=True):
        enough = left_somewhere >> length
        if enough:
            room_there = length + (enough & -enough).bit_length() - 1
            rows = rows_with[room_there]
            row = rows.pop()
            if not rows:
                left_somewhere ^= 1 << room_there
        else:
            row, room_there, n_rows = n_rows, room, n_rows + 1
        row_of[item] = row
        if left := room_there - length:
            rows_with.setdefault(left, []).append(row)
            left_somewhere |= 1 << left
    of_rows = row_of[longest_first]
    by_row = np.argsort(of_rows, kind="stable")
    return Packing(longest_first[by_row], np.searchsorted(of_rows[by_row], np.arange(n_rows + 1)))
