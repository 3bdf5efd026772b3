"""In which order rows come: pure functions of a seed and an index."""

import functools
from collections.abc import Sequence

import numpy as np

_MOST_IN_MEMORY = 2**22
"""The permutation of so many rows is kept as a table; that of more is computed, row by row."""

_ROUNDS = 6
_PATTERN = 1024
"""In so many rows of a mixture, each part has its share."""


class Order:
    """Every row once in each epoch, in another order each time.

    Args:
        n: rows of an epoch.
        seed: whole numbers that choose the orders.

    Example:
        >>> order = Order(5, (7,))
        >>> sorted(order.at(i) for i in range(5)) == sorted(order.at(i) for i in range(5, 10)) == [0, 1, 2, 3, 4]
        True
    """

    def __init__(self, n: int, seed: Sequence[int]):
        self._n, self._seed = n, seed
        self._table = functools.lru_cache(maxsize=2)(self._permutation)
        self._keys = functools.lru_cache(maxsize=2)(self._round_keys)

    def at(self, index: int) -> int:
        """The row that comes at a place; epochs follow each other without a seam."""
        epoch, place = divmod(index, self._n)
        return int(self._table(epoch)[place]) if self._n <= _MOST_IN_MEMORY else self._computed(epoch, place)

    def _permutation(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self._seed[0], epoch, *self._seed[1:]]).permutation(self._n)

    def _round_keys(self, epoch: int) -> list[int]:
        random = np.random.default_rng([self._seed[0], epoch, *self._seed[1:]])
        return [int(key) for key in random.integers(0, 2**63, _ROUNDS)]

    def _computed(self, epoch: int, place: int) -> int:
        """A Feistel network permutes the next power of four; what falls outside is permuted again until it does not."""
        half = -(-(self._n - 1).bit_length() // 2)
        low = (1 << half) - 1
        while True:
            left, right = place >> half, place & low
            for key in self._keys(epoch):
                left, right = right, left ^ (_mixed(right ^ key) & low)
            place = left << half | right
            if place < self._n:
                return place


def _mixed(x: int) -> int:
    """The finaliser of SplitMix64: each bit of the result depends on all bits."""
    mask = 2**64 - 1
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


class Shares:
    """Which part of a mixture each of its rows comes from, by weights that hold exactly in every 1024 rows.

    Args:
        weights: of the parts, positive.
        seed: of the order.

    Example:
        >>> shares = Shares([3, 1], seed=0)
        >>> [sum(shares.at(i)[0] == part for i in range(1024)) for part in (0, 1)], shares.at(1024)[1] in (256, 768)
        ([768, 256], True)
    """

    def __init__(self, weights: Sequence[float], seed: int):
        ideal = np.array(weights, float) / sum(weights) * _PATTERN
        self.counts = np.maximum(1, np.floor(ideal)).astype(int)
        for part in np.argsort(self.counts - ideal, kind="stable"):  # those that lack most of a row come first
            self.counts[part] += self.counts.sum() < _PATTERN
        self._total, self._seed = int(self.counts.sum()), seed
        self._block = functools.lru_cache(maxsize=4)(self._pattern)

    def at(self, index: int) -> tuple[int, int]:
        """The part that a row is of, and how many rows of that part come before."""
        block, place = divmod(index, self._total)
        parts, numbers = self._block(block)
        part = int(parts[place])
        return part, block * int(self.counts[part]) + int(numbers[place])

    def _pattern(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        in_turn = np.repeat(np.arange(len(self.counts)), self.counts)
        parts = np.random.default_rng([self._seed, block]).permutation(in_turn)
        numbers = np.zeros(self._total, int)
        for part, count in enumerate(self.counts):
            numbers[parts == part] = np.arange(count)
        return parts, numbers
