"""Documents by number, of which any stretch can be read: files of bytes, or what token files hold.

Nothing is in memory but a few numbers a document. What is read is what was there when the run began: a file that has
changed since is refused.
"""

import functools
import hashlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from jzero.base.files import open_file, why
from jzero.errors import ConfigError
from jzero.train.data.files import NamedFile
from jzero.train.data.token_file import TokenFile

BYTES = 256
"""The vocabulary of byte tokens: every file is text, and nothing is out of vocabulary."""

_OPEN_FILES = 64
_WHOLE_HASH = 2**30
"""Of text up to so many bytes, the fingerprint depends on every byte; of more, on a part of each file."""

_BLOCK = 2**20


class Documents(Protocol):
    """What can be cut into rows.

    Attributes:
        lengths: tokens of each document, with what ends it: `int64[n]`.
        draws: a number in [0, 1) of each, which divides training from validation.
        vocab_size: above every token.
        masked: whether some tokens do not count in the loss.
        unit: what a token is called.
    """

    lengths: np.ndarray
    draws: np.ndarray
    vocab_size: int
    masked: bool
    unit: str

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        """The tokens of a document from `start` up to `stop`."""
        ...

    def counted(self, document: int, start: int, stop: int) -> np.ndarray:
        """Whether each of them counts."""
        ...

    def fingerprint(self, which: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> str:
        """Tells such stretches of documents apart: sixteen hexadecimal digits."""
        ...


class FileDocuments:
    """Files as bytes, each followed by a zero byte.

    Args:
        files: in the order in which they are numbered.

    Raises:
        ConfigError: a file cannot be read.
    """

    vocab_size, masked, unit = BYTES, False, "bytes"

    def __init__(self, files: Sequence[NamedFile]):
        self._paths = [file.path for file in files]
        self._stats = [_changes(_stat(path)) for path in self._paths]
        self.lengths = np.array([size for size, _ in self._stats], np.int64) + 1
        self.draws = np.array([file.draw for file in files])
        self._handles = OrderedDict[int, int]()
        self._lock = threading.Lock()  # batches are made in one thread while another evaluates
        weakref.finalize(self, _close, self._handles)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        """The bytes; the last one of a document is zero."""
        size = int(self.lengths[document]) - 1
        text = self._bytes(document, start, min(stop, size))
        return np.frombuffer(text + b"\0" * (stop > size), np.uint8)

    def counted(self, document: int, start: int, stop: int) -> np.ndarray:
        """All bytes count."""
        return np.ones(stop - start, np.uint8)

    def fingerprint(self, which: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> str:
        """Of every byte; where there are more than 2**30, of each stretch's length, and its first and last mebibyte."""
        digest, whole = hashlib.sha256(), int((stops - starts).sum()) <= _WHOLE_HASH
        for document, start, stop in zip(which.tolist(), starts.tolist(), stops.tolist(), strict=True):
            if whole:
                spans = [(at, min(at + _BLOCK, stop)) for at in range(start, stop, _BLOCK)]
            else:
                digest.update(f"{stop - start}".encode())
                spans = [(start, min(start + _BLOCK, stop)), (max(start, stop - _BLOCK), stop)]
            for span in spans:
                digest.update(self.read(document, *span).data)
        return digest.hexdigest()[:16]

    def _bytes(self, document: int, start: int, stop: int) -> bytes:
        path = self._paths[document]
        try:
            with self._lock:
                text = os.pread(self._handle(document), max(0, stop - start), start)
        except ConfigError:
            raise
        except (OSError, ValueError) as error:
            raise ConfigError(f"data: cannot read {path}: {why(error)}.") from None
        if len(text) < stop - start:
            raise _changed(path)
        return text

    def _handle(self, document: int) -> int:
        """The open file of a document; the few that were used last stay open."""
        if document not in self._handles:
            with open_file(self._paths[document]) as file:
                if _changes(os.fstat(file.fileno())) != self._stats[document]:
                    raise _changed(self._paths[document])
                self._handles[document] = os.dup(file.fileno())
            if len(self._handles) > _OPEN_FILES:
                os.close(self._handles.popitem(last=False)[1])
        self._handles.move_to_end(document)
        return self._handles[document]


def _close(handles: OrderedDict[int, int]) -> None:
    while handles:
        os.close(handles.popitem()[1])


def _stat(path: Path) -> os.stat_result:
    try:
        with open_file(path) as file:
            return os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        raise ConfigError(f"data: cannot read {path}: {why(error)}.") from None


def _changes(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _changed(path: Path) -> ConfigError:
    return ConfigError(f"data: {path} has changed since the run began to read it; start again when it is complete.")


class TokenDocuments:
    """The documents of token files, one file after the other.

    Args:
        files: opened, of one tokenizer.

    Raises:
        ConfigError: they are of different tokenizers.
    """

    unit = "tokens"

    def __init__(self, files: Sequence[TokenFile]):
        first = files[0]
        if other := next((f for f in files if f.head.tokenizer != first.head.tokenizer), None):
            raise ConfigError(
                f"data.files: {first.path} and {other.path} were made by different tokenizers, whose ids do not mean "
                "the same; make one of them anew with `jzero tokenize`."
            )
        self._files = files
        self.vocab_size, self.tokenizer = first.head.vocab_size, first.head.tokenizer
        self.masked = any(file.counted is not None for file in files)
        starts = [np.concatenate([[0], file.ends[:-1].astype(np.int64)]) for file in files]
        self._starts = np.concatenate(starts)
        self.lengths = np.concatenate([file.ends.astype(np.int64) for file in files]) - self._starts
        self.draws = np.concatenate([file.draws for file in files]) / 2.0**64
        self._first = np.cumsum([0, *(file.head.n_documents for file in files)])

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        """The ids, `int32`."""
        file, at = self._file(document)
        return file.read(at + start, at + stop)

    def counted(self, document: int, start: int, stop: int) -> np.ndarray:
        """What the file says; all tokens count where it says nothing."""
        file, at = self._file(document)
        return np.ones(stop - start, np.uint8) if file.counted is None else file.counted[at + start : at + stop]

    def fingerprint(self, which: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> str:
        """Of the files' own hashes, and which parts of them it is."""
        digest = hashlib.sha256("".join(file.head.sha256 for file in self._files).encode())
        for part in (which, starts, stops):
            digest.update(part.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def _file(self, document: int) -> tuple[TokenFile, int]:
        number = int(np.searchsorted(self._first, document, side="right")) - 1
        return self._files[number], int(self._starts[document])


class Stretches:
    """Some stretches of documents, one after the other: a text to be cut.

    Args:
        documents: of which they are.
        which: the document of each, `int64[n]`.
        starts: where in it each begins.
        stops: where in it each ends.
        name: what to call the text in errors.
    """

    def __init__(self, documents: Documents, which: np.ndarray, starts: np.ndarray, stops: np.ndarray, name: str):
        self.documents, self.name = documents, name
        self.which, self.starts, self.stops = which, starts, stops
        self._ends = np.cumsum(stops - starts)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @functools.cached_property
    def fingerprint(self) -> str:
        """Tells texts apart."""
        return self.documents.fingerprint(self.which, self.starts, self.stops)

    def spans(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The number of each stretch in a part of the text, and from where to where in its document it is."""
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end = int(self._ends[number])
            last = min(stop, end)
            before = end - int(self.stops[number])  # what to take from a place in the text for one in the document
            yield number, start - before, last - before
            start, number = last, number + 1


def divide(documents: Documents, validation_share: float, *, uncut: bool = False) -> tuple[Stretches, Stretches]:
    """Divides documents into training and validation text, each whole, by their draw.

    Where one of the two would have no document, as with a single one, the end of the text is the validation text.

    Args:
        documents: all of them.
        validation_share: the share of the documents, by their draw, that becomes validation text.
        uncut: where one of the two would have no document, it gets one, if there are two.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "a.txt")
        >>> _ = path.write_text("x" * 79)
        >>> [len(text) for text in divide(FileDocuments([NamedFile("a.txt", path)]), 0.25)]
        [60, 20]
    """
    everything, chosen = np.arange(len(documents.lengths)), documents.draws < validation_share
    if uncut and len(everything) > 1:
        chosen[documents.draws.argmin()], chosen[documents.draws.argmax()] = True, False
    parts = everything[~chosen], everything[chosen]
    if all(documents.lengths[part].sum() for part in parts):
        train, validation = (_whole(documents, part, name) for part, name in zip(parts, _NAMES, strict=True))
        return train, validation
    text = _whole(documents, everything, "text")
    cut = len(text) - int(len(text) * validation_share)
    train, validation = (
        _part(text, *span, name) for span, name in zip(((0, cut), (cut, len(text))), _NAMES, strict=True)
    )
    return train, validation


_NAMES = ("training text", "validation text")


def _whole(documents: Documents, which: np.ndarray, name: str) -> Stretches:
    return Stretches(documents, which, np.zeros(len(which), np.int64), documents.lengths[which], name)


def _part(text: Stretches, start: int, stop: int, name: str) -> Stretches:
    spans = np.array(list(text.spans(start, stop)), np.int64).reshape(-1, 3)
    return Stretches(text.documents, text.which[spans[:, 0]], spans[:, 1], spans[:, 2], name)
