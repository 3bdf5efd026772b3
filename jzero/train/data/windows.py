"""Byte tokens cut into windows; a batch is a pure function of its index.

The position of a run in its data is therefore one integer, a checkpoint needs no iterator state, and each process takes
its own rows of the same batch. This is the random access that grain's `MapDataset` offers; over text in memory it is
one permutation per epoch and one indexing, so the dependency and its prefetching threads would buy nothing here.
"""

import functools
import hashlib

import numpy as np

from jzero.errors import ConfigError

VOCAB_SIZE = 256
"""Byte tokens: every file is text, and nothing is out of vocabulary."""


class Windows:
    """A text as windows of `seq_len + 1` bytes, each starting where the last one's targets end.

    Args:
        text: the bytes, also as `uint8[length]`, which is not copied.
        seq_len: tokens a model sees at once.
        seed: of the order, which is a new permutation of all windows in every epoch.
        name: what to call the text in errors.

    Raises:
        ConfigError: if the text is shorter than one window.

    Example:
        >>> windows = Windows(b"to be, or not to be", seq_len=6, seed=0)
        >>> windows.n_windows, windows.batch(0, 2)["tokens"].shape
        (3, (2, 7))
    """

    def __init__(self, text: bytes | np.ndarray, seq_len: int, seed: int, name: str = "text"):
        self.n_windows = (len(text) - 1) // seq_len
        if self.n_windows < 1:
            raise ConfigError(
                f"the {name} is {len(text)} bytes long; data.seq_len {seq_len} needs at least {seq_len + 1}."
            )
        self.seq_len = seq_len
        self.seed = seed
        self._tokens = np.frombuffer(text, np.uint8)
        self._order = functools.lru_cache(maxsize=2)(self._permutation)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells texts apart: sixteen hexadecimal digits that depend on every byte."""
        return hashlib.sha256(self._tokens.data).hexdigest()[:16]

    def batch(self, index: int, rows: int, *, part: int = 0, n_parts: int = 1) -> dict[str, np.ndarray]:
        """One batch, or one process's part of it.

        Args:
            index: which batch, from 0; there is no last one, epochs follow each other without a seam.
            rows: windows in the whole batch.
            part: which part, below `n_parts`.
            n_parts: how many equal parts the batch is divided into.

        Returns:
            `{"tokens": int32[rows / n_parts, seq_len + 1]}`.
        """
        own = rows // n_parts
        first = index * rows + part * own
        starts = [self._order(i // self.n_windows)[i % self.n_windows] for i in range(first, first + own)]
        at = np.asarray(starts)[:, None] * self.seq_len + np.arange(self.seq_len + 1)
        return {"tokens": self._tokens[at].astype(np.int32)}

    def _permutation(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.n_windows)
