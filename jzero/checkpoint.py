"""Checkpoints: a pytree of global arrays and a JSON object, written atomically by any number of processes.

Orbax (tensorstore) writes and reads the arrays, every process its own shards. They are stored under their tree paths in
one flat dictionary, so that a checkpoint does not depend on the Python classes of the state that was saved; beside them
stands a JSON object with every leaf's shape and dtype, and with what the caller wants to keep.

A checkpoint is first written beside its final place, committed there, and then swapped in by renaming; at every moment
either the old one or the new one is complete under a name that `load` looks at.
"""

import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from jzero.errors import CheckpointError

FORMAT = 1
_COMMITTED = "commit_success.txt"  # Orbax writes it as the last file of a checkpoint
_N_LISTED = 5

PathLike = str | os.PathLike[str]


def save(path: PathLike, state: Any, metadata: Mapping[str, Any]) -> None:
    """Writes a checkpoint, replacing one that is already there; every process must call it.

    Args:
        path: the folder that will hold it, on a file system all processes share; its parents are created.
        state: pytree of `jax.Array`s, global ones where there are several processes (scalars too: replicated).
        metadata: anything JSON can hold.

    Raises:
        CheckpointError: the folder holds something else, the metadata is no JSON, or writing failed.
    """
    path = pathlib.Path(path).absolute()
    staging = _staging(path)
    leaves = _leaves_by_path(state)
    header = {
        "format": FORMAT,
        "leaves": {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in leaves.items()},
        "metadata": dict(metadata),
    }
    try:
        json.dumps(header)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"The metadata of the checkpoint {path} cannot be written as JSON: {error}.") from error

    _on_first_process(lambda: _make_room(path, staging), path)
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        try:
            checkpointer.save(
                staging,
                ocp.args.Composite(
                    state=ocp.args.StandardSave(_with_elements(leaves)),  # pyright: ignore[reportCallIssue]
                    header=ocp.args.JsonSave(header),  # pyright: ignore[reportCallIssue]
                ),
            )
        except OSError as error:
            raise CheckpointError(f"The checkpoint {path} could not be written: {error}.") from error
    _on_first_process(lambda: _swap_in(staging, path), path)


def load(path: PathLike, abstract_state: Any) -> tuple[Any, dict[str, Any]]:
    """Reads a checkpoint, each device's shards and nothing more; every process must call it.

    Args:
        path: the folder given to `save`.
        abstract_state: pytree of the saved structure whose leaves have a shape, a dtype and the sharding to load into:
            `jax.ShapeDtypeStruct`s, or the arrays of a state that is being replaced.

    Returns:
        The state and the metadata that was saved with it.

    Raises:
        CheckpointError: no complete checkpoint there, one of another model, or a damaged one.
    """
    found = _find(path)
    header = _read_header(found)
    wanted = _leaves_by_path(abstract_state)
    _check_same_leaves(found, header["leaves"], wanted)
    targets = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        for name, leaf in _with_elements(wanted).items()
    }
    with ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as checkpointer:
        try:
            restored = checkpointer.restore(
                found,
                ocp.args.Composite(state=ocp.args.StandardRestore(targets)),  # pyright: ignore[reportCallIssue]
            )["state"]
        except (KeyError, ValueError, OSError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise CheckpointError(
                f"The arrays of the checkpoint {found} are damaged or incomplete: {reason}"
            ) from error
    leaves = [restored[name] if name in restored else _empty(leaf) for name, leaf in wanted.items()]
    return jax.tree.unflatten(jax.tree.structure(abstract_state), leaves), header["metadata"]


def read_metadata(path: PathLike) -> dict[str, Any]:
    """Reads the metadata of a checkpoint without its arrays.

    Args:
        path: the folder given to `save`.

    Returns:
        The metadata that was saved.

    Raises:
        CheckpointError: no complete checkpoint there, or a damaged one.
    """
    return _read_header(_find(path))["metadata"]


def _leaves_by_path(tree: Any) -> dict[str, Any]:
    """The leaves of a tree under names such as "params/layers/0/kernel", in tree order."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _with_elements(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves that Orbax can store: an array without elements is known from the header alone."""
    return {name: leaf for name, leaf in leaves.items() if leaf.size}


def _empty(leaf: Any) -> jax.Array:
    zeros = np.zeros(leaf.shape, leaf.dtype)
    return jax.make_array_from_callback(leaf.shape, leaf.sharding, lambda index: zeros[index])


def _staging(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f".{path.name}.saving")


def _is_complete(path: pathlib.Path) -> bool:
    return (path / _COMMITTED).is_file()


def _find(path: PathLike) -> pathlib.Path:
    """The complete checkpoint that `path` stands for: the one staged beside it, if a swap was cut short."""
    path = pathlib.Path(path).absolute()
    if _is_complete(path):
        return path
    if not path.exists():
        if _is_complete(_staging(path)):
            return _staging(path)
        raise CheckpointError(f"There is no checkpoint at {path}: the folder does not exist.")
    raise CheckpointError(f"{path} holds no complete checkpoint; give the folder that a checkpoint was saved to.")


def _make_room(path: pathlib.Path, staging: pathlib.Path) -> None:
    """Finishes or clears away what a killed save left, and refuses to replace what is not a checkpoint."""
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
    if path.exists() and not _is_complete(path):
        raise CheckpointError(
            f"{path} already exists and is not a checkpoint; it is left alone: choose another folder or remove it."
        )
    if not path.exists() and _is_complete(staging):
        staging.rename(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f"{staging.name}*"):
        shutil.rmtree(leftover)


def _swap_in(staging: pathlib.Path, path: pathlib.Path) -> None:
    outdated = staging.with_name(f"{staging.name}.outdated")
    if path.exists():
        path.rename(outdated)
    staging.rename(path)
    shutil.rmtree(outdated, ignore_errors=True)


def _on_first_process(action: Callable[[], None], path: pathlib.Path) -> None:
    """Runs an action on the file system once; the other processes wait for it and fail if it failed."""
    error: Exception | None = None
    if jax.process_index() == 0:
        try:
            action()
        except CheckpointError as refusal:
            error = refusal
        except OSError as failure:
            error = CheckpointError(f"The checkpoint {path} could not be written: {failure}.")
    failed = bool(multihost_utils.broadcast_one_to_all(np.int32(error is not None)))
    if failed:
        raise error or CheckpointError(f"The checkpoint {path} could not be written: see the first process's error.")


def _read_header(found: pathlib.Path) -> dict[str, Any]:
    file = found / "header" / "metadata"  # the name Orbax gives to the file of its "header" item
    try:
        header = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"The metadata of the checkpoint {found} is damaged: {file}: {error}.") from error
    if not isinstance(header, dict) or not {"format", "leaves", "metadata"} <= header.keys():
        raise CheckpointError(f"The metadata of the checkpoint {found} is damaged: {file} lacks some of its fields.")
    if header["format"] != FORMAT:
        raise CheckpointError(
            f"The checkpoint {found} has format {header['format']}; this version of jzero reads format {FORMAT}."
        )
    return header


def _check_same_leaves(found: pathlib.Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    described = {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in wanted.items()}
    missing = [f"{name} {_brief(described[name])}" for name in described if name not in saved]
    extra = [f"{name} {_brief(saved[name])}" for name in saved if name not in described]
    different = [
        f"{name} is {_brief(saved[name])} there and {_brief(described[name])} here"
        for name in described
        if name in saved and saved[name] != described[name]
    ]
    problems = [
        f"{len(names)} {what} ({', '.join(names[:_N_LISTED])}{', ...' if len(names) > _N_LISTED else ''})"
        for what, names in (
            ("of this model's leaves are missing in it", missing),
            ("leaves exist only in it", extra),
            ("differ in shape or dtype", different),
        )
        if names
    ]
    if problems:
        raise CheckpointError(f"The checkpoint {found} is of another model: {'; '.join(problems)}.")


def _brief(description: Any) -> str:
    shape, dtype = description
    return f"{dtype}[{','.join(map(str, shape))}]"
