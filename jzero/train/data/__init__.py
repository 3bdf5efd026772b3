"""Text for language models: a run file's `data` part becomes training and validation windows of byte tokens."""

from pathlib import Path
from typing import NamedTuple

from jzero.config import DataConfig
from jzero.train.data.files import glob_files, read_split, stdlib_files
from jzero.train.data.windows import VOCAB_SIZE, Windows

__all__ = ["VOCAB_SIZE", "Corpus", "Windows", "load_corpus"]


class Corpus(NamedTuple):
    """A text, divided."""

    train: Windows
    validation: Windows

    @property
    def fingerprint(self) -> str:
        """Tells texts apart, and the same text divided in another way."""
        return f"{self.train.fingerprint}-{self.validation.fingerprint}"


def load_corpus(data: DataConfig, *, base: Path = Path(), seed: int = 0) -> Corpus:
    """Reads the text that a run file names.

    Args:
        data: the run file's `data` part.
        base: the folder that `data.files` are relative to, the run file's own.
        seed: of the order of the training windows; the validation windows have the same order in every run.

    Raises:
        ConfigError: if a glob matches nothing or the text is too short for one window.

    Example:
        >>> corpus = load_corpus(DataConfig(seq_len=128))
        >>> corpus.train.n_windows > corpus.validation.n_windows > 100
        True
    """
    files = stdlib_files() if data.source == "stdlib" else glob_files(data.files, base)
    train, validation = read_split(files, data.validation_share)
    return Corpus(
        Windows(train, data.seq_len, seed, "training text"),
        Windows(validation, data.seq_len, 0, "validation text"),
    )
