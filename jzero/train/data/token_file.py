"""Token files: what `jzero tokenize` writes, read through a memory map.

| bytes | what |
|---|---|
| 8 | `JZTOKENS` |
| 4088 | a JSON object, `Head`, filled up with blanks |
| 2 or 4 a token | the ids, little-endian, one document after the other |
| 1 a token, if `counted` | 1 where the token counts in the loss, else 0 |
| up to 7 | zeros, up to a multiple of 8 |
| 16 a document | two little-endian `uint64`: where it ends, in tokens, and a hash of its text |

A file gets its name when it is complete. Its `sha256` covers everything behind the head.
"""

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

import numpy as np
from pydantic import BaseModel, ConfigDict

from jzero.base.files import Text, Whole, open_file, parse_json, why
from jzero.errors import ConfigError

MAGIC = b"JZTOKENS"
HEAD_BYTES = 4096
FORMAT = 1
SUFFIX = ".tokens"

_DTYPES = {"uint16": np.dtype("<u2"), "uint32": np.dtype("<u4")}
_DOCUMENT = np.dtype("<u8")
_BLOCK = 2**20


class Head(BaseModel):
    """What a token file says of itself.

    Attributes:
        format: the version of the format.
        dtype: of the ids, `uint16` or `uint32`.
        n_tokens: how many there are.
        n_documents: how many documents they make up, none of which is empty.
        vocab_size: above every id.
        eos: the id that ends a document.
        tokenizer: the SHA-256 of the `tokenizer.json` that made them.
        counted: whether it says of each token if it counts in the loss.
        sha256: of everything behind the head.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Whole
    dtype: Text
    n_tokens: Whole
    n_documents: Whole
    vocab_size: Whole
    eos: Whole
    tokenizer: Text
    counted: bool
    sha256: Text

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Bytes of the ids, of what counts with the zeros behind it, and of the documents."""
        ids = self.n_tokens * _DTYPES[self.dtype].itemsize
        counts = self.n_tokens * self.counted
        return ids, counts + -(ids + counts) % 8, 2 * _DOCUMENT.itemsize * self.n_documents


class TokenFile:
    """A token file, opened: nothing of it is in memory but what the system keeps of it.

    Args:
        path: the file.

    Attributes:
        path: the file.
        head: what it says of itself.
        tokens: the ids.
        counted: `uint8` for each token, or None where every token counts.
        ends: where each document ends, in tokens.
        draws: a hash of each document's text.

    Raises:
        ConfigError: it cannot be read, or is no whole token file.
    """

    def __init__(self, path: Path):
        self.path = path
        try:
            with open_file(path) as file:
                self.head = _read_head(file)
                ids, counts, documents = self.head.sizes
                expected, size = HEAD_BYTES + ids + counts + documents, os.fstat(file.fileno()).st_size
                if size != expected:
                    raise ValueError(f"it is {size:,} bytes long, and its head speaks of {expected:,}")
                self._map = np.memmap(file, np.uint8, "r")
            self.tokens = self._map[HEAD_BYTES : HEAD_BYTES + ids].view(_DTYPES[self.head.dtype])
            behind = self._map[HEAD_BYTES + ids :]
            self.counted = behind[: self.head.n_tokens] if self.head.counted else None
            table = behind[counts:].view(_DOCUMENT).reshape(-1, 2)
            self.ends, self.draws = table[:, 0], table[:, 1]
            starts = np.concatenate([[0], self.ends[:-1]]).astype(np.uint64)
            if not (self.ends > starts).all() or self.ends[-1] != self.head.n_tokens:
                raise ValueError("its documents do not follow each other")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as a token file: {why(error)}.") from None

    def read(self, start: int, stop: int) -> np.ndarray:
        """The ids from `start` up to `stop`, `int32[stop - start]`.

        Raises:
            ConfigError: an id is not below the vocabulary's size, as in a file that is damaged.
        """
        ids = self.tokens[start:stop].astype(np.int64)
        if len(ids) and ids.max() >= self.head.vocab_size:
            raise ConfigError(
                f"{self.path} is damaged: it has the token {ids.max()}, and its vocabulary has {self.head.vocab_size}."
            )
        return ids.astype(np.int32)


def _read_head(file: IO[bytes]) -> Head:
    block = file.read(HEAD_BYTES)
    if not block.startswith(MAGIC):
        raise ValueError("it is none; `jzero tokenize` makes one of text, JSON lines or parquet")
    if len(block) < HEAD_BYTES:
        raise ValueError("it ends within its head")
    head = parse_json(block[len(MAGIC) :], Head)
    if head.format != FORMAT:
        raise ValueError(f"it has format {head.format}, and this version reads {FORMAT}")
    if head.dtype not in _DTYPES:
        raise ValueError(f"its dtype is {head.dtype!r}, which must be one of {', '.join(_DTYPES)}")
    if not 0 < head.vocab_size <= 2**31 or head.vocab_size > 2 ** (8 * _DTYPES[head.dtype].itemsize):
        raise ValueError(f"its vocabulary of {head.vocab_size} does not fit {head.dtype}")
    if not head.n_documents or head.n_tokens < head.n_documents:
        raise ValueError(f"it speaks of {head.n_tokens} tokens in {head.n_documents} documents")
    return head


class TokenWriter:
    """Writes a token file, in memory that does not grow; a context manager that removes what is not complete.

    Args:
        path: the file to be, in a folder that is there.
        vocab_size: above every id.
        eos: the id that ends a document.
        tokenizer: the tokenizer's hash.
        counted: whether it is to be said which tokens count.

    Raises:
        ConfigError: from every method, where the disk does not take it.

    Example:
        >>> path = Path(tempfile.mkdtemp(), "two.tokens")
        >>> with TokenWriter(path, vocab_size=9, eos=0, tokenizer="none", counted=False) as writer:
        ...     writer.add(np.array([5, 6, 0]))
        ...     writer.end_document(draw=7)
        ...     writer.add(np.array([8, 0]))
        ...     writer.end_document(draw=1)
        ...     head = writer.finish()
        >>> TokenFile(path).read(1, 5).tolist(), TokenFile(path).ends.tolist()
        ([6, 0, 8, 0], [3, 5])
    """

    def __init__(self, path: Path, *, vocab_size: int, eos: int, tokenizer: str, counted: bool):
        self._path = path
        self._facts = {"vocab_size": vocab_size, "eos": eos, "tokenizer": tokenizer, "counted": counted}
        self._dtype = "uint16" if vocab_size <= 2**16 else "uint32"
        self.n_tokens = self.n_counted = self.n_documents = 0
        self._partial: Path | None = None
        with self._errors():
            handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
            self._partial = Path(name)
            self._file = os.fdopen(handle, "wb")
            self._file.write(bytes(HEAD_BYTES))
            self._counts, self._documents = (tempfile.TemporaryFile(dir=path.parent) for _ in range(2))  # noqa: SIM115
        self._hash = hashlib.sha256()

    def add(self, ids: np.ndarray, counted: np.ndarray | bool = True) -> None:
        """Appends tokens to the present document; `counted` says which of them count."""
        counts = np.broadcast_to(np.asarray(counted, np.uint8), ids.shape)
        with self._errors():
            self._write(ids.astype(_DTYPES[self._dtype]).tobytes())
            if self._facts["counted"]:
                self._counts.write(counts.tobytes())
        self.n_tokens += len(ids)
        self.n_counted += int(counts.sum())

    def end_document(self, draw: int) -> None:
        """Ends the present document, whose text has this hash."""
        with self._errors():
            self._documents.write(np.array([self.n_tokens, draw], _DOCUMENT).tobytes())
        self.n_documents += 1

    def finish(self) -> Head:
        """Completes the file, which has its name from now on."""
        if not self.n_documents:
            raise ConfigError(f"{self._path} is not written: there is no document with any text in it.")
        facts = {"format": FORMAT, "dtype": self._dtype, "n_tokens": self.n_tokens, "n_documents": self.n_documents}
        with self._errors():
            self._append(self._counts)
            self._write(bytes(-self._file.tell() % 8))
            self._append(self._documents)
            head = Head.model_validate({**facts, **self._facts, "sha256": self._hash.hexdigest()})
            self._file.seek(0)
            self._file.write((MAGIC + json.dumps(head.model_dump()).encode()).ljust(HEAD_BYTES))
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            assert self._partial is not None
            umask = os.umask(0)
            os.umask(umask)
            self._partial.chmod(0o666 & ~umask)
            self._partial.replace(self._path)
            self._partial = None
        return head

    def __enter__(self) -> "TokenWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in (self._file, self._counts, self._documents):
            with contextlib.suppress(OSError):  # a full disk has been told of
                file.close()
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)

    def _append(self, spooled: IO[bytes]) -> None:
        spooled.seek(0)
        for block in iter(functools.partial(spooled.read, _BLOCK), b""):
            self._write(block)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {why(error)}.") from None
