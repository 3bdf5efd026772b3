"""From documents to a token file, in memory that does not grow with them.

While the library encodes one batch on all cores, what it made of the one before is written.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jzero.errors import ConfigError
from jzero.train.data.chat import ChatTemplate
from jzero.train.data.records import Piece, Records, first_record, is_instruction, pieces_of
from jzero.train.data.token_file import Head, TokenWriter
from jzero.train.data.tokenizer import Encoding, Tokenizer, ids_of

BATCH_CHARACTERS, BATCH_PIECES = 2**22, 4096
"""A batch is full when it has either of these."""

Progress = Callable[[int, int, int], None]
"""Is told of files, tokens and documents that are done."""


class Made(NamedTuple):
    """What came of it.

    Attributes:
        head: what the token file says of itself.
        n_empty: documents without any text, which were left out.
        n_characters: of all documents.
        n_counted: tokens that count in the loss.
        notes: sentences on what may not be as expected.
    """

    head: Head
    n_empty: int
    n_characters: int
    n_counted: int
    notes: tuple[str, ...] = ()


def tokenize_files(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    out: Path,
    *,
    field: str | None = None,
    progress: Progress = lambda files, tokens, documents: None,
) -> Made:
    """Makes a token file.

    Args:
        files: of text, `.jsonl`, `.parquet`, or folders that `datasets` saved.
        tokenizer: makes the ids.
        out: the file to write, in a folder that is there.
        field: of a record, the one with the text.
        progress: is called now and then.

    Raises:
        ConfigError: what cannot be read or written; nothing is left then.
    """
    counted = any(record is not None and is_instruction(record, field) for record in map(first_record, files))
    chat: list[ChatTemplate] = []

    def parts(messages: list) -> list[tuple[str, bool]]:
        if not chat:
            chat.append(ChatTemplate(tokenizer))  # which records without messages do without
        return chat[0].parts(messages)

    def documents() -> Iterator[tuple[int, Piece]]:
        for number, path in enumerate(files):
            for piece in pieces_of(path, Records(field, parts)):
                if not counted and not piece.counted:
                    raise ConfigError(
                        f"{path} begins with a text and goes on with instructions, of which answers alone count in the "
                        "loss; put the two into files of their own."
                    )
                yield number, piece

    facts = {"vocab_size": tokenizer.vocab_size, "eos": tokenizer.eos, "tokenizer": tokenizer.sha256}
    with TokenWriter(out, **facts, counted=counted) as writer:
        assembly = _Assembly(writer, tokenizer.eos)
        for number, batch, encodings in _encoded(tokenizer, _batches(documents())):
            for piece, encoding in zip(batch, encodings, strict=True):
                assembly.add(piece, ids_of(encoding))
            progress(number, writer.n_tokens, writer.n_documents)
        if not writer.n_documents:
            more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
            raise ConfigError(f"{files[0]}{more}: there is no document with any text, of which tokens could be made.")
        head = writer.finish()
    progress(len(files), head.n_tokens, head.n_documents)
    return Made(head, assembly.n_empty, assembly.n_characters, writer.n_counted, tuple(_notes(assembly, tokenizer)))


def _notes(assembly: "_Assembly", tokenizer: Tokenizer) -> Iterator[str]:
    if assembly.n_empty:
        yield f"{assembly.n_empty:,} documents without any text are left out."
    if (assembly.n_cut or assembly.n_parts) and tokenizer.marks_beginnings:
        if assembly.n_cut:
            yield (
                "This tokenizer marks where a text begins, and a text of more than 250,000 characters is read in "
                f"pieces: {assembly.n_cut:,} marks are there that one text at once would not have."
            )
        if assembly.n_parts:
            yield (
                "This tokenizer marks where a text begins, and what is asked and what answers are tokenised apart: "
                f"{assembly.n_parts:,} parts of records may begin with a mark that one text at once would not have."
            )


class _Assembly:
    """Puts the pieces of documents together again."""

    def __init__(self, writer: TokenWriter, eos: int):
        self._writer, self._eos = writer, np.array([eos], np.uint32)
        self._hash, self._length = hashlib.blake2b(digest_size=8), 0
        self.n_empty = self.n_cut = self.n_parts = self.n_characters = 0

    def add(self, piece: Piece, ids: np.ndarray) -> None:
        self._writer.add(ids, piece.counted)
        self._hash.update(piece.text.encode())
        self._length += len(ids)
        self.n_characters += len(piece.text)
        is_text = piece.counted and not piece.closed
        self.n_cut += is_text and not piece.ends
        self.n_parts += not is_text and not piece.ends
        if not piece.ends:
            return
        if self._length:
            if not piece.closed:
                self._writer.add(self._eos, piece.counted)
            self._writer.end_document(int.from_bytes(self._hash.digest()))
        else:
            self.n_empty += 1
        self._hash, self._length = hashlib.blake2b(digest_size=8), 0


_Numbered = tuple[int, list[Piece]]


def _batches(pieces: Iterable[tuple[int, Piece]]) -> Iterator[_Numbered]:
    batch, size, number = list[Piece](), 0, 0
    for number, piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if size >= BATCH_CHARACTERS or len(batch) >= BATCH_PIECES:
            yield number, batch
            batch, size = [], 0
    if batch:
        yield number, batch


def _encoded(tokenizer: Tokenizer, batches: Iterable[_Numbered]) -> Iterator[tuple[int, list[Piece], list[Encoding]]]:
    """What the library makes of each batch; it makes that of the next one meanwhile."""
    with ThreadPoolExecutor(1) as encoder:
        before: tuple[_Numbered, Future[list[Encoding]]] | None = None
        for number, batch in batches:
            future = encoder.submit(tokenizer.encodings, [piece.text for piece in batch])
            if before is not None:
                yield *before[0], before[1].result()
            before = (number, batch), future
        if before is not None:
            yield *before[0], before[1].result()
