"""A checkpoint's weights as plain files that other programs read: safetensors or npz, block by block."""

import contextlib
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np

from jzero.base.types import Json
from jzero.checkpoint.format import arrays, checksum, safetensors
from jzero.checkpoint.format.header import Header, Leaf
from jzero.checkpoint.format.leaves import is_floating, narrowed
from jzero.checkpoint.format.safetensors import Entry
from jzero.checkpoint.run.loading import PathLike, check_files, read_header
from jzero.errors import CheckpointError, DamagedCheckpointError

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
_WEIGHTS = ("params/", "model_state/")
_AT_ONCE = 2**22
"""About how many elements are cast at once."""

_OUR_FILES = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json", "model.npz")
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def export(
    path: PathLike,
    out: PathLike,
    *,
    format: Literal["safetensors", "npz"] = "safetensors",
    dtype: Literal["fp32", "bf16"] = "fp32",
    max_shard_bytes: int = 5 * 10**9,
    overwrite: bool = False,
) -> list[Path]:
    """Writes the parameters and the model's state, under their dotted names; tied parameters once.

    In memory is a part of one leaf at a time: the rows that lie together on the disk. What is read is checked like what
    is loaded. A file has its name only when it is whole.

    Args:
        path: a checkpoint, or a folder of checkpoints, of which the newest is taken.
        out: a folder; it is made if it is not there.
        format: safetensors files, and Hugging Face's index file if there are several; or one npz file.
        dtype: of floating leaves; others keep their own.
        max_shard_bytes: how long a safetensors file may be; a larger leaf has a file of its own.
        overwrite: replace weights that are there; it is refused otherwise.

    Returns:
        The files that were written.

    Raises:
        CheckpointError: no checkpoint there, a damaged one, `out` cannot be written to, or it holds weights already,
            or with `overwrite` files of another export that would not be replaced.
    """
    folder, head = read_header(path)
    check_files(folder, head)
    entries = [
        entry_of(folder, name, leaf, DTYPES[dtype]) for name, leaf in head.leaves.items() if name.startswith(_WEIGHTS)
    ]
    if not entries:
        raise CheckpointError(f"The checkpoint {folder} holds no parameters to export.")
    _check_names(folder, [name for name in head.leaves if name.startswith(_WEIGHTS)])
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if format == "npz":
            return [_write_npz(out / "model.npz", entries, overwrite)]
        return _write_safetensors(out, entries, _facts(head), max_shard_bytes, overwrite)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written to: {error.strerror}.") from error


def parse_bytes(text: str) -> int:
    """Reads a size such as `5GB`, as Hugging Face writes them: units of 1000, or of 1024 with an `i`.

    Example:
        >>> parse_bytes("5GB"), parse_bytes("1.5 MiB")
        (5000000000, 1572864)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([KMG]?I?B?)\s*", text.upper())
    try:
        size = int(float(found[1]) * _UNITS[found[2] or ""]) if found else 0
    except (ValueError, KeyError):
        size = 0
    if size <= 0:
        raise CheckpointError(f"{text!r} is no size; write one such as 5GB or 500MB.")
    return size


def dotted(name: str) -> str:
    """The name of a leaf among weights: its path without the part of the state, with dots.

    Example:
        >>> dotted("params/h/0/attn/kernel")
        'h.0.attn.kernel'
    """
    return name.partition("/")[2].replace("/", ".")


def _check_names(folder: Path, names: list[str]) -> None:
    """Refuses names that are one when dots are between their parts, of which a file would have only one."""
    found: dict[str, str] = {}
    for name in names:
        if (other := found.setdefault(dotted(name), name)) != name:
            raise CheckpointError(
                f"{other} and {name} of the checkpoint {folder} would both be exported as {dotted(name)!r}; "
                "name one of them otherwise in the model."
            )


def entry_of(folder: Path, name: str, leaf: Leaf, floating: str) -> Entry:
    """A leaf of a checkpoint that is still to be read: some rows at a time, checked, in the dtype that is written."""
    to = floating if is_floating(leaf.dtype) else leaf.dtype

    def blocks() -> Iterator[np.ndarray]:
        if not leaf.nbytes:
            yield np.zeros(leaf.shape, jnp.dtype(to))
            return
        try:
            for block in checksum.verified(arrays.read_in_blocks(folder, name, leaf.shape), leaf.shape, leaf.checksum):
                for part in np.array_split(block, 1 + block.size // _AT_ONCE) if block.ndim else [block]:
                    yield narrowed(part, to)
                del block, part  # before the next one is read
        except OverflowError as error:
            raise CheckpointError(f"{name} of the checkpoint {folder} cannot be exported: {error}.") from error
        except Exception as error:  # tensorstore and the file system each have their own
            raise DamagedCheckpointError(
                f"The checkpoint {folder} is damaged: {name}: {arrays.reason(error)}."
            ) from error

    return Entry(dotted(name), leaf.shape, to, blocks)


def _facts(head: Header) -> dict[str, str]:
    """What a file says of itself: where it comes from, tied names, and the model if `jzero train` made it."""
    extra = head.metadata.get("extra")
    facts = {
        "step": head.metadata.get("step"),
        "aliases": head.metadata.get("aliases", {}),
        "model": extra.get("model") if isinstance(extra, dict) else None,
    }
    return {"format": "flax", "jzero": json.dumps(facts)}


def _write_safetensors(
    out: Path, entries: list[Entry], metadata: dict[str, str], limit: int, overwrite: bool
) -> list[Path]:
    shards = list(shards_of(entries, limit))
    n = len(shards)
    files = [out / (f"model-{i:05}-of-{n:05}.safetensors" if n > 1 else "model.safetensors") for i in range(1, n + 1)]
    written = [*files, out / "model.safetensors.index.json"] if n > 1 else files
    check_alone(out, written, overwrite)
    for file, shard in zip(files, shards, strict=True):
        with unfinished_file(file) as unfinished:
            safetensors.write(unfinished, shard, metadata)
    if n > 1:
        index: dict[str, Json] = {
            "metadata": {"total_size": sum(entry.nbytes for entry in entries)},
            "weight_map": {entry.name: file.name for file, shard in zip(files, shards, strict=True) for entry in shard},
        }
        with unfinished_file(written[-1]) as unfinished:
            unfinished.write_text(json.dumps(index, indent=2) + "\n")
    return written


def shards_of(entries: list[Entry], limit: int) -> Iterator[list[Entry]]:
    """Divides arrays into files of at most `limit` bytes; a larger one has a file of its own."""
    shard: list[Entry] = []
    for entry in entries:
        if shard and sum(e.nbytes for e in shard) + entry.nbytes > limit:
            yield shard
            shard = []
        shard.append(entry)
    yield shard


def _write_npz(file: Path, entries: list[Entry], overwrite: bool) -> Path:
    if unknown := next((entry for entry in entries if np.dtype(jnp.dtype(entry.dtype)).kind == "V"), None):
        raise CheckpointError(
            f"{unknown.name} would be {unknown.dtype}, which npz does not have; export fp32, or to safetensors."
        )
    check_alone(file.parent, [file], overwrite)
    with unfinished_file(file) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_STORED) as archive:
        for entry in entries:
            descr = np.lib.format.dtype_to_descr(np.dtype(entry.dtype))
            with archive.open(f"{entry.name}.npy", "w", force_zip64=True) as member:
                header = {"descr": descr, "fortran_order": False, "shape": entry.shape}
                np.lib.format.write_array_header_1_0(member, header)
                for block in entry.blocks():
                    member.write(safetensors.as_bytes(block))
                    del block  # before the next one is made
    return file


def check_alone(out: Path, written: list[Path], overwrite: bool) -> None:
    """Refuses to replace weights unasked, and a folder where another export's files could be taken for these."""
    there = {file for pattern in _OUR_FILES for file in out.glob(pattern)}
    if others := there - set(written):
        raise CheckpointError(
            f"{out} holds {min(others).name} of another export, which could be taken for a part of this one; "
            "remove it or choose another folder."
        )
    if there and not overwrite:
        raise taken(min(there))


def taken(file: Path) -> CheckpointError:
    """That a file is there which would be replaced."""
    return CheckpointError(
        f"{file} is there already; choose another folder, or replace it with --overwrite (`overwrite=True` in Python)."
    )


@contextlib.contextmanager
def unfinished_file(file: Path) -> Iterator[Path]:
    """Where to write a file that replaces what is there when it is whole; if it cannot be finished, nothing stays."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        yield unfinished
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
