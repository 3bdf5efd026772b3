"""The safetensors format, written block by block and read array by array, so that no more is in memory at a time.

A file is the length of a JSON header (8 bytes, little endian), the header, and the arrays' bytes in the header's order.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel

from jzero.base.files import Text, Whole, in_form, parse_json, why
from jzero.base.files import open_file as open_regular
from jzero.base.types import Json
from jzero.errors import CheckpointError

NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The format's name of each dtype."""

_METADATA = "__metadata__"
_MOST_HEADER = 100_000_000
"""What the format allows, in bytes."""

_DTYPES = {short: jnp.dtype(name) for name, short in NAMES.items()}


class Entry(NamedTuple):
    """An array that is still to be read.

    Attributes:
        name: under which it is written.
        shape: its shape.
        dtype: the name of its dtype.
        blocks: reads it, some rows at a time.
        mapped: the array as it lies in its file, of which only what is looked at is read; None where it cannot be.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    blocks: Callable[[], Iterable[np.ndarray]]
    mapped: Callable[[], np.ndarray] | None = None

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * jnp.dtype(self.dtype).itemsize

    def read(self) -> np.ndarray:
        """Reads all of it."""
        first, *others = self.blocks()
        return np.concatenate([first, *others]) if others else first


def write(file: Path, entries: Iterable[Entry], metadata: Mapping[str, str]) -> None:
    """Writes a file, reading one block after the other.

    Args:
        file: is replaced.
        entries: the arrays.
        metadata: goes into the header's `__metadata__`.

    Raises:
        OSError: it cannot be written.
        CheckpointError: the format has no such dtype.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "weights.safetensors")
        >>> write(file, [Entry("w", (2,), "float32", lambda: [np.ones(2, np.float32)])], {"format": "flax"})
        >>> open_file(file)["w"].read().tolist()
        [1.0, 1.0]
    """
    entries = list(entries)
    head, _ = head_of(entries, metadata)
    with file.open("wb") as out:
        out.write(head)
        for entry in entries:
            for block in entry.blocks():
                out.write(as_bytes(block))
                del block  # before the next one is made


def head_of(entries: Iterable[Entry], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """What a file begins with, and at which byte of it each array begins.

    Raises:
        CheckpointError: the format has no such dtype or name.

    Example:
        >>> head, places = head_of([Entry("w", (2,), "float32", list), Entry("b", (1,), "int8", list)], {})
        >>> places["b"] - places["w"], places["w"] == len(head)
        (8, True)
    """
    header, offset = {}, 0
    for entry in entries:
        if entry.dtype not in NAMES:
            raise CheckpointError(f"{entry.name} is of dtype {entry.dtype}, which safetensors does not have.")
        if entry.name == _METADATA or entry.name in header:
            why_not = "two arrays of one name" if entry.name in header else "an array of this name"
            raise CheckpointError(f"{entry.name!r} cannot be written: safetensors does not have {why_not}.")
        end = offset + entry.nbytes
        header[entry.name] = {"dtype": NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps({_METADATA: dict(metadata), **header}).encode()
    text += b" " * (-len(text) % 8)
    head = struct.pack("<Q", len(text)) + text
    return head, {name: len(head) + facts["data_offsets"][0] for name, facts in header.items()}


def as_bytes(block: np.ndarray) -> memoryview:
    """The bytes of some rows, without a copy if they lie in order."""
    return np.ascontiguousarray(block).reshape(-1).view(np.uint8).data


def open_file(file: Path) -> dict[str, Entry]:
    """Opens a file: its arrays by name, each read when it is asked for.

    Raises:
        CheckpointError: it is no such file, shorter or longer than it says, or its header contradicts itself.
    """
    header, start = _header(file)
    return {name: _entry(file, name, facts, start) for name, facts in header.arrays.items()}


def read_metadata(file: Path) -> dict[str, str]:
    """The `__metadata__` of a file."""
    return _header(file)[0].metadata


class _Facts(BaseModel):
    """What the header says of an array: the offsets of its first byte and of the first behind it."""

    dtype: Text
    shape: list[Whole]
    data_offsets: tuple[Whole, Whole]


class _Header(NamedTuple):
    metadata: dict[str, str]
    arrays: dict[str, _Facts]


def _header(file: Path) -> tuple[_Header, int]:
    """The header of a file, found to be right, and where the arrays' bytes begin."""
    try:
        with open_regular(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            head = opened.read(8)
            length = int.from_bytes(head, "little")
            if len(head) < 8 or length > size - 8:
                raise ValueError("it ends inside its header")
            if length > _MOST_HEADER:
                raise ValueError(f"its header has {length} bytes, and the format allows {_MOST_HEADER}")
            content = parse_json(opened.read(length), dict[str, Json])
        metadata = in_form(content.pop(_METADATA, {}), dict[str, Text])
        arrays = in_form(content, dict[str, _Facts])
        _check_offsets(arrays, size - 8 - length)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} cannot be read as safetensors: {why(error)}.") from error
    return _Header(metadata, arrays), 8 + length


def _check_offsets(arrays: Mapping[str, _Facts], size: int) -> None:
    """Every byte behind the header belongs to one array, and each has as many as its shape and dtype need."""
    at = 0
    for name, facts in sorted(arrays.items(), key=lambda item: item[1].data_offsets):
        begin, end = facts.data_offsets
        if facts.dtype not in _DTYPES:
            raise ValueError(f"{name} is of dtype {facts.dtype}, which jzero does not read")
        needed = math.prod(facts.shape) * _DTYPES[facts.dtype].itemsize
        if end - begin != needed:
            raise ValueError(f"{name}, {facts.dtype}{facts.shape}, needs {needed} bytes and is given {end - begin}")
        if begin != at:
            raise ValueError(f"{name} begins at byte {begin} of the data, and what lies before it ends at {at}")
        at = end
    if at != size:
        raise ValueError(f"it holds {size} bytes of data instead of {at}")


def _entry(file: Path, name: str, facts: _Facts, start: int) -> Entry:
    dtype, shape, (begin, end) = _DTYPES[facts.dtype], tuple(facts.shape), facts.data_offsets

    def blocks() -> list[np.ndarray]:
        with open_regular(file) as opened:
            opened.seek(start + begin)
            return [np.frombuffer(opened.read(end - begin), dtype).reshape(shape)]

    def mapped() -> np.ndarray:
        if not end - begin:
            return np.zeros(shape, dtype)
        with open_regular(file) as opened:
            return np.memmap(opened, dtype, "r", start + begin, shape)

    return Entry(name, shape, dtype.name, blocks, mapped)
