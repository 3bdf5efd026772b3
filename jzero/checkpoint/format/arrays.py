"""The arrays on disk: written and read by Orbax, every process its own shards, in one flat dictionary by leaf path.

They are not compressed: the bits of trained weights hardly are compressible, and zstd would take twice the time.
"""

import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from jzero.base.types import Json
from jzero.checkpoint.format.header import ARRAYS
from jzero.checkpoint.format.leaves import in_default_memory, on_cpus
from jzero.checkpoint.format.silence import leave_out_tracebacks, writing

_TIMEOUT_SECONDS = 24 * 3600
"""How long a save may take: Orbax's twenty minutes are too few for a large state and a slow disk."""

_ONE_AT_A_TIME = {"file_io_concurrency": {"limit": 1}, "data_copy_concurrency": {"limit": 1}}


leave_out_tracebacks()


def start_writing(folder: Path, leaves: Mapping[str, jax.Array]) -> Callable[[], None]:
    """Makes this process's shards safe from what training does next, and prepares to write them.

    Args:
        folder: does not exist yet; it gets its name when all processes have written their shards.
        leaves: global arrays with elements; their memory may be reused as soon as this returns.

    Returns:
        What has to be called in another thread: it returns when all is written, or raises what went wrong.
    """
    places: dict[str, str] = {}
    for name in leaves:
        if (other := places.setdefault(_place(name), name)) != name:
            raise ValueError(f"{other!r} and {name!r} are one name to it")
    finish = functools.partial(_finish, folder=folder, names=tuple(leaves))
    if jax.process_count() > 1 or not on_cpus(leaves):  # several processes start together, on their devices
        return functools.partial(finish, _start(folder, leaves))
    # In the host's memory nothing has to be copied, and the threads that write can be started from another thread: to
    # start one takes long just after a step, while the process gives the step's memory back to the system.
    held = {name: _hold(x) for name, x in leaves.items()}
    return lambda: finish(_start(folder, {name: share() for name, share in held.items()}))


def _start(folder: Path, leaves: Mapping[str, jax.Array]) -> ocp.AsyncCheckpointer:
    handler = ocp.CompositeCheckpointHandler(arrays=ocp.PyTreeCheckpointHandler(use_compression=False))
    options = ocp.options.AsyncOptions(timeout_secs=_TIMEOUT_SECONDS)
    checkpointer = ocp.AsyncCheckpointer(handler, async_options=options)
    args = ocp.args.PyTreeSave(dict(leaves))  # pyright: ignore[reportCallIssue]
    with writing():
        checkpointer.save(folder, ocp.args.Composite(arrays=args))
    return checkpointer


def _finish(checkpointer: ocp.AsyncCheckpointer, folder: Path, names: Sequence[str]) -> None:
    with writing():
        checkpointer.wait_until_finished()
        checkpointer.close()
    if jax.process_index() == 0:
        _merge(folder / ARRAYS)
        stored = stored_names(folder)
        if lost := [name for name in names if _place(name) not in stored]:
            raise ValueError(f"{lost[0]} is not among what can be read again")


def _merge(root: Path) -> None:
    """Makes one database of those that processes wrote, if Orbax has not: it takes the path for a glob to find them."""
    if (root / "manifest.ocdbt").exists():
        return
    context = ts.Context()  # one for both, or what one has cannot be referred to by the other
    parent = ts.KvStore.open(_database(root), context=context).result()
    with ts.Transaction(atomic=True) as merged:
        for part in sorted(root.iterdir()):
            if part.name.startswith("ocdbt.process_"):
                child = ts.KvStore.open(_database(part), context=context).result()
                child.experimental_copy_range_to(parent.with_transaction(merged)).result()


def stored_names(folder: Path) -> set[str]:
    """The leaves whose arrays a checkpoint's database has, without a slash at the end of their names."""
    keys = ts.KvStore.open(_database(folder / ARRAYS)).result().list().result()
    return {key.decode().removesuffix("/.zarray") for key in keys if key.endswith(b"/.zarray")}


def _place(name: str) -> str:
    """Where the database has a leaf: it takes a slash at the end, as of a parameter without a name, for its own."""
    return name.removesuffix("/")


def _files(root: Path) -> dict[str, Json]:
    """How tensorstore is told of a folder: as a path, since it would read much in a URL that stands for itself here."""
    return {"driver": "file", "path": f"{root.absolute()}/"}


def _database(root: Path) -> dict[str, Json]:
    return {"driver": "ocdbt", "base": _files(root)}


def _hold(x: jax.Array) -> Callable[[], jax.Array]:
    """What makes an array that shares the memory of `x`, which no program can reuse from now on."""
    views = {str(part.index): np.asarray(part.data) for part in x.addressable_shards if part.replica_id == 0}
    shape, sharding = x.shape, in_default_memory(x.sharding)
    return lambda: jax.make_array_from_callback(shape, sharding, lambda index: views[str(index)])


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
    """Opens one leaf for reading parts of it into this process's memory, with little of it besides."""
    spec = {"driver": "zarr", "kvstore": {**_database(folder / ARRAYS), "path": f"{_place(name)}/"}}
    return ts.open(spec, open=True, read=True, context=ts.Context(_ONE_AT_A_TIME)).result()


def read_in_blocks(folder: Path, name: str, shape: tuple[int, ...] | None = None) -> Iterator[np.ndarray]:
    """Reads one leaf into this process's memory from the first row to the last, some rows at a time.

    Args:
        folder: a complete checkpoint.
        name: of the leaf.
        shape: what it should be.

    Yields:
        As many whole rows as lie together on the disk: a shard's rows, or all of them if columns are divided.

    Raises:
        ValueError: it is of another shape, or cannot be read.
    """
    stored = open_leaf(folder, name)
    if shape is not None and stored.shape != shape:
        raise ValueError(f"it is stored with the shape {stored.shape} instead of {shape}")
    if not stored.shape:
        yield stored.read().result()
        return
    chunk = cast(tuple[int, ...], stored.chunk_layout.read_chunk.shape)
    rows, *columns = (
        [slice(at, min(at + step, size)) for at in range(0, size, step)]
        for size, step in zip(stored.shape, chunk, strict=True)
    )
    for some in rows:
        pieces = list(itertools.product(*columns))
        if len(pieces) == 1:
            yield stored[(some, *pieces[0])].read().result()
            continue
        block = np.empty((some.stop - some.start, *stored.shape[1:]), stored.dtype.numpy_dtype)
        target = ts.array(block).translate_by[some.start, *[0] * len(columns)]
        for piece in pieces:
            target[(some, *piece)].write(stored[(some, *piece)]).result()
        yield block
        del block, target  # before the next one is made


def leaves_of_files(folder: Path) -> dict[str, dict[str, int]]:
    """Which leaves have data in which file: file -> leaf -> the last byte of it, in the checkpoint folder's paths.

    The B+ tree that tells is protected by checksums of its own; leaves of a few bytes lie in it.
    """
    base = ts.KvStore.open(_files(folder / ARRAYS)).result()
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
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and len(causes) < 10:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        if number := re.search(r"(?:OS error |os_error_code=')(\d+)", f"{cause}"):
            return os.strerror(int(number[1]))
    text = f"{causes[-1]}".partition("\n")[0].partition(" See full TensorStore details")[0]
    return text[:300].rstrip(".") or type(error).__name__
