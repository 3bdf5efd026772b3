"""The arrays on disk: written and read by Orbax, every process its own shards, in one flat dictionary by leaf path.

They are not compressed: the bits of trained weights hardly are compressible, and zstd would take twice the time.
"""

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from jzero.checkpoint.header import ARRAYS
from jzero.checkpoint.place import STAGED


class _NoTracebacks(logging.Filter):
    """Keeps Orbax's threads from logging a failed write of ours with its traceback; the caller gets a sentence."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (STAGED in record.getMessage() and f"{os.sep}orbax{os.sep}" in record.pathname)


logging.getLogger("absl").addFilter(_NoTracebacks())


def start_writing(folder: Path, leaves: Mapping[str, jax.Array]) -> ocp.AsyncCheckpointer:
    """Copies this process's shards to host memory and writes them in the background.

    Args:
        folder: does not exist yet; it gets its name when all processes have written their shards.
        leaves: global arrays with elements; their memory may be reused as soon as this returns.

    Returns:
        A checkpointer whose `wait_until_finished` raises what went wrong; it must be closed.
    """
    handler = ocp.CompositeCheckpointHandler(arrays=ocp.PyTreeCheckpointHandler(use_compression=False))
    checkpointer = ocp.AsyncCheckpointer(handler)
    args = ocp.args.PyTreeSave(dict(leaves))  # pyright: ignore[reportCallIssue]
    checkpointer.save(folder, ocp.args.Composite(arrays=args))
    return checkpointer


def read(folder: Path, targets: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    """Reads some leaves, each device's shards and nothing more.

    Args:
        folder: a complete checkpoint.
        targets: for each leaf its saved dtype, the sharding to read into, and its shape, which may be longer than the
            saved one: zeros are appended.
    """
    if not targets:
        return {}
    restore_args = {
        name: ocp.ArrayRestoreArgs(sharding=x.sharding, global_shape=x.shape, strict=False, dtype=x.dtype)
        for name, x in targets.items()
    }
    args = ocp.args.PyTreeRestore(dict(targets), restore_args=restore_args, partial_restore=True)  # pyright: ignore[reportCallIssue]
    handler = ocp.CompositeCheckpointHandler(arrays=ocp.PyTreeCheckpointHandler())
    with ocp.Checkpointer(handler) as checkpointer:
        return checkpointer.restore(folder, ocp.args.Composite(arrays=args))[ARRAYS]


def open_leaf(folder: Path, name: str) -> ts.TensorStore:
    """Opens one leaf for reading parts of it into this process's memory."""
    base = f"file://{folder.absolute()}/{ARRAYS}/"
    spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
    return ts.open(spec, open=True, read=True).result()


def read_whole(folder: Path, name: str) -> np.ndarray:
    """Reads one leaf into this process's memory."""
    return open_leaf(folder, name).read().result()


def leaves_of_files(folder: Path) -> dict[str, dict[str, int]]:
    """Which leaves have data in which file: file -> leaf -> the last byte of it, in the checkpoint folder's paths.

    The B+ tree that tells is protected by checksums of its own; leaves of a few bytes lie in it.
    """
    root = folder / ARRAYS
    base = ts.KvStore.open(f"file://{root.absolute()}/").result()
    found: dict[str, dict[str, int]] = {}

    def walk(location: str, prefix: bytes) -> None:
        node = ts.ocdbt.dump(base, location).result()
        for entry in node["entries"]:
            key = prefix + entry["key"]
            if "location" in entry:
                walk(entry["location"], key[: len(prefix) + entry.get("subtree_common_prefix_length", 0)])
            if place := entry.get("indirect_value"):
                _, directory, file, offset, length = place.split(":")
                name, _, _ = key.decode().rpartition("/")
                leaves = found.setdefault(f"{ARRAYS}/{directory}{file}", {})
                leaves[name] = max(leaves.get(name, 0), int(offset) + int(length))

    manifest = ts.ocdbt.dump(base).result()
    walk(manifest["versions"][-1]["root"]["location"], b"")
    return found


def reason(error: BaseException) -> str:
    """Why the file system refused, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = f"{error}"
    if number := re.search(r"(?:OS error |os_error_code=')(\d+)", text):
        return os.strerror(int(number[1]))
    return text.partition("\n")[0][:300] or type(error).__name__
