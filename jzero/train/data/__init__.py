"""Text for language models: a run file's `data` part becomes training and validation batches of tokens."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from jzero.config import DataConfig
from jzero.config.schema.data import BYTES, PartConfig
from jzero.errors import ConfigError
from jzero.train.data.documents import BYTES as VOCAB_SIZE
from jzero.train.data.documents import Documents, FileDocuments, Stretches, TokenDocuments, divide
from jzero.train.data.files import glob_files, stdlib_files
from jzero.train.data.rows import PackedRows, Rows, SplitRows
from jzero.train.data.token_file import TokenFile
from jzero.train.data.tokenizer import Tokenizer
from jzero.train.data.tokenizing import tokenize_files
from jzero.train.data.windows import Batches, Mixture, Windows

__all__ = ["VOCAB_SIZE", "Batches", "Corpus", "Mixture", "Windows", "load_corpus"]


class Corpus(NamedTuple):
    """A text, divided.

    Attributes:
        train: batches to train on.
        validation: batches to evaluate on.
        vocab_size: above every token.
        unit: what a token is called.
        full: whether its batches say which documents tokens are of and which tokens count.
        notes: sentences on what became of the documents.
        tokenizer: the SHA-256 of the tokenizer.json that made the tokens; None for bytes.
    """

    train: Batches
    validation: Batches
    vocab_size: int = VOCAB_SIZE
    unit: str = "bytes"
    full: bool = False
    notes: tuple[str, ...] = ()
    tokenizer: str | None = None

    @property
    def fingerprint(self) -> str:
        """Tells texts apart, and the same text divided, packed or mixed in another way."""
        return f"{self.train.fingerprint}-{self.validation.fingerprint}"


class _Part(NamedTuple):
    """One text, divided and cut into rows."""

    train: Rows
    validation: Rows
    documents: Documents
    notes: tuple[str, ...] = ()


def load_corpus(data: DataConfig, *, base: Path = Path(), seed: int = 0) -> Corpus:
    """Opens the text that a run file names; little of it is read before it is trained on.

    Args:
        data: the run file's `data` part.
        base: the folder that `files` and `tokenizer` are relative to, the run file's own.
        seed: of the order of the training rows; the validation rows have the same order in every run.

    Raises:
        ConfigError: if a glob matches nothing, a file cannot be read, or the text is too short.

    Example:
        >>> corpus = load_corpus(DataConfig(seq_len=128))
        >>> corpus.train.n_windows > corpus.validation.n_windows > 100
        True
    """
    opened = [_open(part, data, base) for part in data.parts]
    vocab_size = max(part.documents.vocab_size for part in opened)
    units = list(dict.fromkeys(part.documents.unit for part in opened))
    if len(units) > 1:
        raise ConfigError("data.mixture: bytes and tokens do not mean the same to a model; mix sources of one kind.")
    tokenizer = _one_tokenizer(opened)
    full = any(rows.full for part in opened for rows in part[:2])
    weights = [part.weight for part in data.parts]
    train = _batches([part.train for part in opened], weights, seed)
    validation = _batches([part.validation for part in opened], weights, 0)
    return Corpus(train, validation, vocab_size, units[0], full, tuple(_notes(opened)), tokenizer)


def _batches(parts: Sequence[Rows], weights: Sequence[float], seed: int) -> Batches:
    if len(parts) == 1:
        return Windows(parts[0], [seed])
    return Mixture([Windows(rows, [seed, number]) for number, rows in enumerate(parts)], weights, seed)


def _open(part: PartConfig, data: DataConfig, base: Path) -> _Part:
    documents, notes = _documents(part, base)
    pack = part.packs == "best_fit"
    texts = divide(documents, data.validation_share, uncut=pack)

    def rows(text: Stretches) -> Rows:
        return PackedRows(text, data.seq_len) if pack else SplitRows(text, data.seq_len, apart=part.keeps_apart)

    return _Part(rows(texts[0]), rows(texts[1]), documents, notes)


def _documents(part: PartConfig, base: Path) -> tuple[Documents, tuple[str, ...]]:
    """The documents, and what is to be said of how they were made."""
    files = stdlib_files() if part.source == "stdlib" else glob_files(part.files, base)
    if part.source in BYTES:
        return FileDocuments(files), ()
    tokenizer = None if part.tokenizer is None else Tokenizer(base / part.tokenizer)
    if part.source == "tokens":
        opened = [TokenFile(file.path) for file in files]
        wrong = [file for file in opened if tokenizer is not None and file.head.tokenizer != tokenizer.sha256]
        if wrong and tokenizer is not None:
            raise ConfigError(
                f"data.tokenizer: {wrong[0].path} was made by another tokenizer than {tokenizer.path}; make it anew "
                "with `jzero tokenize`."
            )
        return TokenDocuments(opened), ()
    assert tokenizer is not None, "the run file was checked"
    with tempfile.TemporaryDirectory(prefix="jzero-tokens-") as folder:
        out = Path(folder, "records.tokens")
        made = tokenize_files([file.path for file in files], tokenizer, out, field=part.field)
        return TokenDocuments([TokenFile(out)]), made.notes  # its map outlives its name


def _one_tokenizer(parts: Sequence[_Part]) -> str | None:
    made = {part.documents.tokenizer for part in parts if isinstance(part.documents, TokenDocuments)}
    if len(made) > 1:
        raise ConfigError("data.mixture: its texts were made by different tokenizers, whose ids do not mean the same.")
    return made.pop() if made else None


def _notes(parts: Sequence[_Part]) -> Iterator[str]:
    for part in parts:
        yield from part.notes
    for rows in (rows for part in parts for rows in part[:1] if isinstance(rows, PackedRows)):
        yield f"best fit: {rows.n_rows:,} rows, of which {rows.padding:.1%} is padding."
        if rows.n_cut:
            yield (
                f"best fit: {rows.n_cut:,} documents are longer than data.seq_len {rows.seq_len} and are cut into "
                "several, which do not see each other."
            )
