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
    """Makes a folder of arrays a checkpoint: the file is whole on the disk before it has its name."""
    content = {
        "format": FORMAT,
        "leaves": {name: [list(leaf.shape), leaf.dtype, leaf.checksum] for name, leaf in header.leaves.items()},
        "files": {name: list(facts) for name, facts in header.files.items()},
        "metadata": header.metadata,
        "order": header.order,
    }
    text = json.dumps({"saved_at": time.time(), "order": header.order, "crc32": _crc(content), "content": content})
    unnamed = folder / f".{FILE}"
    with unnamed.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unnamed.rename(folder / FILE)


def age(folder: Path) -> Age | None:
    """How old a complete checkpoint is, from the first bytes of its header; None if these are damaged."""
    try:
        with (folder / FILE).open("rb") as file:
            found = re.match(rb'{"saved_at": ([0-9]+\.?[0-9]*)(?:, "order": ([0-9]+))?, ', file.read(_AGE_BYTES))
    except OSError:
        return None
    return Age(int(found[2] or 0), float(found[1])) if found else None


def read(folder: Path) -> Header:
    """Reads the header of a complete checkpoint.

    Raises:
        CheckpointError: it is damaged, or of another version's format.
    """
    file = folder / FILE
    try:
        data = json.loads(file.read_bytes())
        content, crc = data["content"], data["crc32"]
        if content["format"] != FORMAT:
            raise CheckpointError(
                f"The checkpoint {folder} has format {content['format']}; this version of jzero reads format {FORMAT}."
            )
        if crc != _crc(content):
            raise ValueError("its content does not have its checksum")
        if data.get("order") != content.get("order"):
            raise ValueError("its order does not have its checksum")
        leaves = {
            name: Leaf(tuple(shape), dtype, checksum) for name, (shape, dtype, checksum) in content["leaves"].items()
        }
        files = {name: (size, file_crc) for name, (size, file_crc) in content["files"].items()}
        return Header(leaves, files, content["metadata"], content.get("order", 0))
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise DamagedCheckpointError(
            f"The checkpoint {folder} is damaged: {FILE} cannot be read ({reason})."
        ) from error


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
    for name, (size, crc) in header.files.items():
        file = folder / name
        try:
            actual = file.stat().st_size
            if actual != size:
                problems[name] = f"is {actual} bytes long instead of {size}"
            elif crc is not None and zlib.crc32(file.read_bytes()) != crc:
                problems[name] = "has other contents than were written"
        except OSError as error:
            problems[name] = (
                "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
            )
    return problems


def _crc(content: Json) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
