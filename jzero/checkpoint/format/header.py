"""`jzero.json`, the file that makes a folder a checkpoint: what is in it, and what every other file of it must be.

It is written last, into a folder that gets its final name only afterwards. Small files are known by size and CRC-32,
large ones by size; what is in the large ones is covered by the checksum of each leaf.
"""

import json
import math
import os
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
from pydantic import BaseModel

from jzero.base.files import Text, Whole, in_form, inside, kind_of, open_file, parse_json, read_json, why
from jzero.base.types import Json
from jzero.checkpoint.format.leaves import brief
from jzero.errors import CheckpointError, DamagedCheckpointError

STAGED = ".saving"
"""How the name ends of a folder in which a checkpoint is made."""

FORMAT = 2
FILE = "jzero.json"
ARRAYS = "arrays"
"""The folder, inside a checkpoint, in which Orbax keeps the arrays: the name of its item in `arrays.py`."""

SMALL_FILE_BYTES = 2**20

_MOST_BYTES = 2**28
"""How long the file may be: some millions of leaves and files."""

_AGE_BYTES = 96
"""A header begins with what `age` reads, and that is shorter."""


@dataclass(frozen=True)
class Leaf:
    """One saved array.

    Attributes:
        shape: its true global shape.
        dtype: the name of its dtype.
        checksum: of its elements (see `jzero.checkpoint.format.checksum`); empty for an array without elements.
    """

    shape: tuple[int, ...]
    dtype: str
    checksum: str = ""

    @property
    def nbytes(self) -> int:
        """Its size in memory."""
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return brief(self.shape, self.dtype)


@dataclass(frozen=True)
class Header:
    """What a checkpoint says of itself.

    Attributes:
        leaves: every array by its path, such as `params/layers/0/kernel`.
        files: size in bytes and CRC-32 (None for a large file) of every other file, by its path in the folder.
        metadata: what was saved with the arrays: anything JSON can hold.
        order: larger than that of every checkpoint that lay beside it when it was made; 0 if an older version made it.
    """

    leaves: Mapping[str, Leaf]
    files: Mapping[str, tuple[int, int | None]]
    metadata: Mapping[str, Json]
    order: int = 0


class Age(NamedTuple):
    """What decides which of two checkpoints is newer, the first number first.

    Attributes:
        order: see `Header`.
        saved_at: when it was completed, in seconds since the epoch. Clocks differ, so this counts only between those
            that an older version made.
    """

    order: int
    saved_at: float


def is_complete(folder: Path) -> bool:
    """Whether a folder is a complete checkpoint."""
    return (folder / FILE).is_file()


def write(folder: Path, header: Header) -> None:
    """Makes a folder of arrays a checkpoint: the file is whole on the disk before it has its name.

    Raises:
        OSError: it cannot be written.
        ValueError: it could not be read again.
    """
    content = {
        "format": FORMAT,
        "leaves": {name: [list(leaf.shape), leaf.dtype, leaf.checksum] for name, leaf in header.leaves.items()},
        "files": {name: list(facts) for name, facts in header.files.items()},
        "metadata": header.metadata,
        "order": header.order,
    }
    content = parse_json(json.dumps(content), dict[str, Json])  # with keys that are no text as they come back
    text = json.dumps({"saved_at": time.time(), "order": header.order, "crc32": _crc(content), "content": content})
    unnamed = folder / f".{FILE}"
    with unnamed.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _parse(unnamed)
    unnamed.rename(folder / FILE)


def check_metadata(metadata: Json) -> None:
    """Refuses what could not be written, or not be read again.

    Raises:
        ValueError: it is no JSON, lies too deep, or two of its keys are written alike.
    """
    try:
        parse_json(json.dumps({"content": {"metadata": metadata}}), dict[str, dict[str, dict[str, Json]]])
    except (TypeError, RecursionError) as error:
        raise ValueError(why(error)) from None


def age(folder: Path) -> Age | None:
    """How old a complete checkpoint is, from the first bytes of its header; None if these are damaged."""
    try:
        with open_file(folder / FILE) as file:
            found = re.match(rb'{"saved_at": ([0-9]+\.?[0-9]*)(?:, "order": ([0-9]+))?, ', file.read(_AGE_BYTES))
    except (OSError, ValueError):
        return None
    return Age(int(found[2] or 0), float(found[1])) if found else None


def read(folder: Path) -> Header:
    """Reads the header of a complete checkpoint.

    Raises:
        CheckpointError: it is damaged, or of another version's format.
    """
    try:
        return _parse(folder / FILE)
    except _AnotherFormat as error:
        raise CheckpointError(
            f"The checkpoint {folder} has format {error}; this version of jzero reads format {FORMAT}."
        ) from None
    except (OSError, ValueError) as error:
        raise DamagedCheckpointError(
            f"The checkpoint {folder} is damaged: {FILE} cannot be read ({why(error)})."
        ) from error


class _AnotherFormat(ValueError):
    """The number of the format that a file has."""


class _Document(BaseModel):
    """The file."""

    crc32: Whole
    content: dict[Text, Json]
    order: Whole | None = None


class _Content(BaseModel):
    """What the checksum in the file is of."""

    leaves: dict[Text, tuple[list[Whole], Text, Text]]
    files: dict[Text, tuple[Whole, Whole | None]]
    metadata: dict[Text, Json]
    order: Whole = 0


def _parse(file: Path) -> Header:
    document = read_json(file, _Document, _MOST_BYTES)
    if (number := document.content.get("format")) != FORMAT:
        raise _AnotherFormat(number)
    if document.crc32 != _crc(document.content):
        raise ValueError("its content does not have its checksum")
    if document.order != document.content.get("order"):
        raise ValueError("its order does not have its checksum")
    content = in_form(document.content, _Content)
    leaves = {name: Leaf(tuple(shape), dtype, checksum) for name, (shape, dtype, checksum) in content.leaves.items()}
    for name, leaf in leaves.items():
        try:
            known = jnp.dtype(leaf.dtype).kind != "O"
        except TypeError:
            known = False
        if not known:
            raise ValueError(f"{name} is of dtype {leaf.dtype}, which jzero does not know")
    for name, (size, crc) in content.files.items():
        inside(file.parent, name)
        if crc is not None and size > SMALL_FILE_BYTES:
            raise ValueError(f"{name} has {size} bytes, too many for a checksum in the header")
    return Header(leaves, content.files, content.metadata, content.order)


def describe_files(folder: Path) -> dict[str, tuple[int, int | None]]:
    """Size and CRC-32 of every file below a folder, by path; the header's own file is left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name.lstrip(".") != FILE:
            size = path.stat().st_size
            small = size <= SMALL_FILE_BYTES
            found[path.relative_to(folder).as_posix()] = (size, zlib.crc32(path.read_bytes()) if small else None)
    return found


def damaged_files(folder: Path, header: Header) -> dict[str, str]:
    """What is wrong with files of a checkpoint, as far as sizes and the small files' contents tell."""
    problems = {}
    for place, _, names in os.walk(folder):  # what nobody names might be opened all the same
        for path in (Path(place, name) for name in names):
            if kind := kind_of(path.stat()) if path.exists() else None:
                problems[path.relative_to(folder).as_posix()] = f"is {kind}, not a file"
    for name, (size, crc) in header.files.items():
        try:
            with open_file(folder / name) as file:
                actual = os.fstat(file.fileno()).st_size
                if actual != size:
                    problems[name] = f"is {actual} bytes long instead of {size}"
                elif crc is not None and zlib.crc32(file.read(size)) != crc:
                    problems[name] = "has other contents than were written"
        except FileNotFoundError:
            problems[name] = "is missing"
        except (OSError, ValueError) as error:
            problems[name] = f"cannot be read: {why(error)}"
    return problems


def _crc(content: Json) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
