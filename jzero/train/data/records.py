"""Documents of files, a piece at a time: text, JSON lines, parquet, and what `datasets` saves.

A record is an object with a `text`, with `prompt` and `completion`, or with `messages`. Of the latter two only what the
model is to answer counts in the loss.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from jzero.base.files import inside, open_file, parse_json, read_json, why
from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.train.data.tokenizer import optional_package

PIECE = 2**18
"""A text comes in pieces of about so many characters, cut before a line."""

_MOST_LINE = 2**28
_TAILS = (2**12, 2**16)
"""How much of the end of a long text is looked at for a place to cut."""

_ROWS = 1000
_INSTRUCTIONS = ({"messages"}, {"prompt", "completion"})

Chat = Callable[[list[Mapping[str, Json]]], list[tuple[str, bool]]]
"""Makes texts of messages, and says of each whether it counts."""


class Piece(NamedTuple):
    """A part of a document.

    Attributes:
        text: of it.
        counted: whether it counts in the loss.
        ends: whether the document ends with it.
        closed: whether what ends a document is there already, as chat templates put it.
    """

    text: str
    counted: bool = True
    ends: bool = True
    closed: bool = False


class Records(NamedTuple):
    """How documents are made of records.

    Attributes:
        field: the field that has the text, or None to take what is there.
        chat: makes texts of messages; raises a `ConfigError` where that cannot be.
    """

    field: str | None
    chat: Chat


def is_instruction(record: Mapping[str, Json], field: str | None) -> bool:
    """Whether only a part of such a record counts."""
    return field is None and "text" not in record and any(keys <= record.keys() for keys in _INSTRUCTIONS)


def pieces_of(path: Path, records: Records) -> Iterator[Piece]:
    """The documents of a file, or of a folder that `datasets` saved.

    Raises:
        ConfigError: with the file, and where in it, as soon as what is wrong is met.
    """
    if path.is_dir() or path.suffix not in _READERS:
        yield from _of_dataset(path, records) if path.is_dir() else _of_text(path)
        return
    for number, record in enumerate(_READERS[path.suffix](path), 1):
        yield from _of_record(record, records, f"{path}, record {number}")


def first_record(path: Path) -> Mapping[str, Json] | None:
    """The first record of a file; None for a file of text, and for an empty one."""
    if path.is_dir():
        return next(_rows_of_dataset(path), None)
    record = next(_READERS[path.suffix](path), None) if path.suffix in _READERS else None
    return record if isinstance(record, Mapping) else None


def _of_text(path: Path) -> Iterator[Piece]:
    if path.suffix == ".json":
        raise ConfigError(f"{path}: JSON must be one object a line, in a file that ends with .jsonl.")
    carried = ""
    try:
        with open_file(path) as raw:
            for block in iter(lambda: raw.read(PIECE), b""):
                block += _rest_of_character(raw, block)
                carried += block.decode()
                if len(carried) >= PIECE:
                    at = cut(carried)
                    yield Piece(carried[:at], ends=False)
                    carried = carried[at:]
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {why(error)}.") from None
    yield Piece(carried)


def _rest_of_character(raw: IO[bytes], block: bytes) -> bytes:
    """The bytes that belong to the last character of a block."""
    for back in range(1, min(4, len(block)) + 1):
        lead = block[-back]
        if lead & 0xC0 != 0x80:  # where a character begins
            wanted = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
            return raw.read(max(0, wanted - back))
    return b""


def cut(text: str) -> int:
    r"""Where a long text is cut: before its last line that begins with a letter, else before a blank, else at its end.

    There tokenizers cut as well, so that the ids are those of the whole.

    Example:
        >>> cut("one two\nthree\n    four"), cut("one two"), cut("one")
        (8, 3, 3)
    """
    for pattern in (r"(?<=\S\n)\w", r"(?<=\S) (?=\S)"):
        for length in _TAILS:
            tail = text[-length:]
            if at := max((found.start() for found in re.finditer(pattern, tail)), default=0):
                return len(text) - len(tail) + at
    return len(text)


def _of_record(record: Json, how: Records, where: str) -> Iterator[Piece]:
    if not isinstance(record, Mapping):
        raise ConfigError(f"{where} is no object.")
    if not is_instruction(record, how.field):
        field = how.field or "text"
        yield Piece(_string(record, field, where))
        return
    if "messages" not in record:
        yield Piece(_string(record, "prompt", where), counted=False, ends=False)
        yield Piece(_string(record, "completion", where))
        return
    messages = record["messages"]
    if not isinstance(messages, list) or not messages or not all(isinstance(one, Mapping) for one in messages):
        raise ConfigError(f"{where}: `messages` must be a list of objects with `role` and `content`.")
    try:
        parts = how.chat(messages)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    for number, (text, counted) in enumerate(parts, 1):
        yield Piece(_whole(text, where), counted, number == len(parts), closed=True)


def _string(record: Mapping[str, Json], field: str, where: str) -> str:
    if isinstance(value := record.get(field), str):
        return _whole(value, where)
    missing = {"prompt", "completion"} - record.keys()
    if field == "text" and "text" not in record and len(missing) == 1:  # with both it is an instruction
        raise ConfigError(f"{where} has no `{missing.pop()}`; a record of instructions has `prompt` and `completion`.")
    has = f"its fields are {', '.join(map(str, list(record)[:8]))}" if field not in record else f"it is {value!r:.60}"
    raise ConfigError(f"{where}: `{field}` must be a string; {has}. --field, or data.field of a run, names the text's.")


def _whole(text: str, where: str) -> str:
    """The text, which must be one that can be written: JSON can say half of a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where} has half of a character (a lone surrogate), which is no text.") from None
    return text


def _json_lines(path: Path) -> Iterator[Json]:
    number = 0
    try:
        with open_file(path) as file:
            while line := file.readline(_MOST_LINE + 1):
                number += 1
                if len(line) > _MOST_LINE:
                    raise ValueError(f"it is longer than {_MOST_LINE:,} bytes")
                if line := line.strip():
                    yield json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{path}, line {number} is not UTF-8 text.") from None
    except RecursionError:
        raise ConfigError(f"{path}, line {number}: its lists and objects lie too deep in each other.") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {number} is no JSON at column {error.colno}.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}, line {number} cannot be read: {why(error)}.") from None


def _parquet(path: Path) -> Iterator[Json]:
    parquet = optional_package("pyarrow.parquet", "a parquet file", "parquet")
    try:
        with parquet.ParquetFile(path, memory_map=True) as file:
            yield from _rows(file.iter_batches(batch_size=_ROWS))
    except _ARROW as error:
        raise ConfigError(f"{path} cannot be read as parquet: {why(error)}.") from None


def _rows(batches: Iterable[Json]) -> Iterator[Json]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS):
            yield from batch.slice(start, _ROWS).to_pylist()


def _of_dataset(folder: Path, records: Records) -> Iterator[Piece]:
    for number, record in enumerate(_rows_of_dataset(folder), 1):
        yield from _of_record(record, records, f"{folder}, record {number}")


def _rows_of_dataset(folder: Path) -> Iterator[Json]:
    if (folder / "dataset_dict.json").exists():
        raise ConfigError(f"{folder} has several splits; name the folder of one, such as {folder / 'train'}.")
    state = folder / "state.json"
    if not state.exists():
        raise ConfigError(
            f"{folder} is no folder that `datasets` saved (it has no state.json); name the files in it, such as "
            f"'{folder}/**/*.jsonl'."
        )
    try:
        facts = read_json(state, dict[str, Json], 2**24)
        listed = parse_json(json.dumps(facts.get("_data_files")), list[dict[str, str]])
        files = [inside(folder, one["filename"]) for one in listed]
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{state} cannot be read: {why(error)}.") from None
    arrow = optional_package("pyarrow", "a folder that `datasets` saved", "parquet")
    for file in files:
        try:
            with arrow.memory_map(str(file)) as source, arrow.ipc.open_stream(source) as stream:
                yield from _rows(stream)
        except _ARROW as error:
            raise ConfigError(f"{file} cannot be read as Arrow: {why(error)}.") from None


_ARROW = (OSError, ValueError, NotImplementedError, KeyError, TypeError)
"""What pyarrow's errors are."""

_READERS: Mapping[str, Callable[[Path], Iterator[Json]]] = {
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
