"""Reading npz files: what each array is, from its header; the array itself only when it is asked for.

A compressed file of a few kilobytes may stand for terabytes of zeros, so nothing is unpacked before names and shapes
are known to be wanted.
"""

import functools
import math
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from jzero.base.files import open_file, why
from jzero.checkpoint.format.safetensors import Entry
from jzero.errors import CheckpointError

_SUFFIX = ".npy"
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_KINDS = "biufc"
"""The kinds of dtypes that are numbers; all others could hold objects or have fields."""


def open_npz(file: Path) -> dict[str, Entry]:
    """Opens an npz file: its arrays by name.

    Raises:
        CheckpointError: it is no such file, or holds what is no array of numbers.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "weights.npz")
        >>> np.savez_compressed(file, w=np.ones((2, 3)))
        >>> entry = open_npz(file)["w"]
        >>> entry.shape, entry.read().sum()
        ((2, 3), np.float64(6.0))
    """
    try:
        with open_file(file) as opened, zipfile.ZipFile(opened) as archive:
            members = archive.infolist()
            heads = {info.filename.removesuffix(_SUFFIX): _head_of(archive, info) for info in members}
            if len(heads) < len(members):
                raise ValueError("it holds two arrays of one name")
    except _FAILURES as error:
        raise CheckpointError(f"{file} cannot be read as npz: {why(error)}.") from error
    return {
        name: Entry(name, head.shape, head.dtype.name, functools.partial(_blocks, file, info.filename, head))
        for (name, head), info in zip(heads.items(), members, strict=True)
    }


class _Head(NamedTuple):
    """What stands before an array: its shape, whether its columns lie together, and its dtype."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype


_FAILURES = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What zipfile, zlib and numpy raise of files that are damaged, encrypted or of a newer kind."""


def _head_of(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Head:
    with archive.open(info) as member:
        head = _head(member)
        needed = member.tell() + math.prod(head.shape) * head.dtype.itemsize
    if info.file_size != needed:
        raise ValueError(f"{info.filename} has {info.file_size} bytes and needs {needed}")
    return head


def _head(member: IO[bytes]) -> _Head:
    version = np.lib.format.read_magic(member)
    if version not in _HEADERS:
        raise ValueError(f"an array has version {version} of the npy format, which jzero does not read")
    head = _Head(*_HEADERS[version](member))
    if head.dtype.kind not in _KINDS or not head.dtype.isnative:
        raise ValueError(f"an array is of dtype {head.dtype}, which jzero does not read")
    if any(size < 0 for size in head.shape):
        raise ValueError(f"an array has the shape {head.shape}")
    return head


def _blocks(file: Path, member: str, head: _Head) -> Iterator[np.ndarray]:
    with open_file(file) as opened, zipfile.ZipFile(opened) as archive, archive.open(member) as stored:
        _head(stored)
        flat = np.empty(math.prod(head.shape), head.dtype)
        at, memory = 0, flat.view(np.uint8).data
        while some := stored.read(2**24):  # the last read checks the member's CRC-32
            memory[at : at + len(some)] = some  # refused where it would be longer
            at += len(some)
        if at < len(memory):
            raise ValueError("it ends too early")
    yield flat.reshape(head.shape, order="F" if head.fortran else "C")
