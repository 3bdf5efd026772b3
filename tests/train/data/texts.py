"""Documents in memory, for tests of what is made of them."""

import numpy as np

from jzero.train.data.documents import Stretches, divide
from jzero.train.data.rows import PackedRows, SplitRows
from jzero.train.data.windows import Windows


class InMemory:
    """Documents given as lists of tokens; `odd` says that odd tokens alone count."""

    unit = "bytes"

    def __init__(self, documents: list[list[int]], *, odd: bool = False):
        self.documents, self.masked = [np.array(ids, np.int64) for ids in documents], odd
        self.lengths = np.array([len(ids) for ids in documents], np.int64)
        self.draws = (np.arange(len(documents)) + 0.5) / len(documents)
        self.vocab_size = 10**6

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        return self.documents[document][start:stop]

    def counted(self, document: int, start: int, stop: int) -> np.ndarray:
        return self.read(document, start, stop) % 2 if self.masked else np.ones(stop - start, int)

    def fingerprint(self, which: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> str:
        return "".join(map(str, self.lengths))


def text_of(documents: list[list[int]], **options: bool) -> Stretches:
    """All documents, one after the other."""
    text, _ = divide(InMemory(documents, **options), 0)
    text.name = "text"
    return text


def windows_of(text: bytes, seq_len: int, seed: int) -> Windows:
    """Windows of one document."""
    return Windows(SplitRows(text_of([list(text)]), seq_len), [seed])


def rows_of(documents: list[list[int]], seq_len: int, form: str, **options: bool) -> SplitRows | PackedRows:
    """Rows of a form: `concatenate`, `apart` or `best_fit`."""
    text = text_of(documents, **options)
    return PackedRows(text, seq_len) if form == "best_fit" else SplitRows(text, seq_len, apart=form == "apart")
