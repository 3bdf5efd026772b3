"""Loading: any checkpoint into any state whose true arrays are the same, or into the part of it that is named.

Each process reads its own shards in the new layout. What has arrived is checked against the checksums that were taken
before it was saved, leaf by leaf; if something is wrong, the files at fault are looked for and named.
"""

import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from jzero.base.files import kind_of
from jzero.base.types import Json, Placements, PyTree
from jzero.checkpoint.format import arrays, checksum, header
from jzero.checkpoint.format.header import Header, Leaf
from jzero.checkpoint.format.leaves import by_name, in_default_memory, narrows, on_devices, true_shapes
from jzero.checkpoint.run.place import find
from jzero.checkpoint.run.processes import agree, on_first_process
from jzero.checkpoint.run.selection import Selection, Source, match
from jzero.errors import CheckpointError, DamagedCheckpointError

PathLike = str | os.PathLike[str]

_LOGGER = logging.getLogger("jzero")

LeafToFill: TypeAlias = jax.Array | jax.ShapeDtypeStruct
"""A leaf of the state to load into: its shape, its dtype and its sharding are what counts."""


def load(
    path: PathLike,
    state: PyTree,
    *,
    placements: Placements = None,
    selection: Selection | None = None,
    donate: bool = False,
) -> tuple[PyTree, dict[str, Json]]:
    """Reads a checkpoint into a state; every process must call it.

    Args:
        path: a checkpoint, or a folder of checkpoints, of which the newest complete one is taken.
        state: the pytree to fill, whose leaves have a shape, a dtype and the sharding to load into, in any memory:
            `jax.ShapeDtypeStruct`s, or the arrays of a live state, which are needed where leaves keep their values.
        placements: a pytree like `state` of `jzero.sharding.placement.Placement`s, if its arrays are padded.
        selection: what to load; everything by default, and it must fit exactly.
        donate: give up the memory of the arrays that are replaced before reading, once the names, the shapes and the
            files are found to be right, so that the devices never hold two states.

    Leaves that are asked for and not loaded wholly are listed in the log, at level WARNING.

    Returns:
        The state, and the metadata that was saved.

    Raises:
        CheckpointError: no complete checkpoint there, one of another model, or a damaged one.
    """
    folder = find(path)
    head = header.read(folder)
    shapes, live = true_shapes(state, placements), by_name(state)
    wanted = {name: Leaf(shapes[name], str(x.dtype)) for name, x in live.items()}
    sources, notes = match(folder, head.leaves, wanted, selection or Selection(), advise=True)
    on_first_process(lambda: check_files(folder, head))
    if donate:
        for name, source in sources.items():
            if not source.grown:  # the others keep some of their values
                live[name].delete()
    parts = _read_verified(folder, head, _targets(head, sources, live))
    loaded, overflows = {}, {}
    for name, source in sources.items():
        if not live[name].size:
            loaded[name] = _empty(live[name])
            continue
        loaded[name], overflow = _assemble(source, parts, live[name], head)
        overflows |= {} if overflow is None else {name: overflow}
    _check_overflows(folder, {name: live[name].dtype for name, overflow in overflows.items() if overflow})
    leaves = [loaded.get(name, x) for name, x in live.items()]
    if jax.process_index() == 0:
        for note in notes:
            _LOGGER.warning("%s", note)
    return jax.tree.unflatten(jax.tree.structure(state), leaves), dict(head.metadata)


def read_header(path: PathLike) -> tuple[Path, Header]:
    """Reads what a checkpoint says of itself, and nothing else.

    Args:
        path: a checkpoint, or a folder of checkpoints, of which the newest complete one is taken.

    Raises:
        CheckpointError: no complete checkpoint there, or a damaged one.
    """
    folder = find(path)
    return folder, header.read(folder)


def _targets(
    head: Header, sources: Mapping[str, Source], live: Mapping[str, LeafToFill]
) -> dict[str, jax.ShapeDtypeStruct]:
    """How to read each saved leaf: padded like what it becomes, in its own dtype, in device memory if it changes."""
    targets = {}
    for name, source in sources.items():
        to, shape, sharding = live[name], live[name].shape, live[name].sharding
        if not to.size:
            continue
        spec = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
        if source.stacked:
            shape, spec = shape[1:], PartitionSpec(*spec[1:])
        elif source.index is not None:
            shape, spec = (source.n_layers, *shape), PartitionSpec(None, *spec)
        saved = head.leaves[source.names[0]].dtype
        if isinstance(sharding, NamedSharding) and (spec != sharding.spec or saved != str(to.dtype)):
            sharding = NamedSharding(sharding.mesh, spec)
        targets |= {part: jax.ShapeDtypeStruct(shape, jnp.dtype(saved), sharding=sharding) for part in source.names}
    return targets


def _read_verified(folder: Path, head: Header, targets: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.Array]:
    parts, failure = {}, None
    try:
        parts = arrays.read(folder, targets)
    except Exception as error:  # Orbax, tensorstore and the file system each have their own
        failure = DamagedCheckpointError(
            f"The arrays of the checkpoint {folder} cannot be read: {arrays.reason(error)}."
        )
    agree(failure)
    sums = checksum.finish(checksum.start(parts, {name: head.leaves[name].shape for name in parts}))
    damaged = [name for name, text in sums.items() if text != head.leaves[name].checksum]
    if damaged:
        where = _files_of(folder, damaged)
        raise DamagedCheckpointError(
            f"The checkpoint {folder} is damaged: {_listed(damaged)} {'have' if len(damaged) > 1 else 'has'} other "
            f"values than were saved{f' ({_listed(where)})' if where else ''}; use an older checkpoint."
        )
    return parts


def _assemble(
    source: Source, parts: Mapping[str, jax.Array], to: LeafToFill, head: Header
) -> tuple[jax.Array, jax.Array | None]:
    """Brings what was read into the form, the dtype and the place of the wanted leaf.

    Returns:
        The leaf; and bool[], whether a number was too large for its dtype, if that can be.
    """
    xs = [parts[name] for name in source.names]
    if source.grown:
        return _grow(xs[0], to, head.leaves[source.names[0]].shape)
    if not source.stacked and source.index is None and xs[0].dtype == to.dtype:
        return xs[0], None
    sharding = to.sharding
    if isinstance(sharding, NamedSharding):
        sharding = NamedSharding(sharding.mesh, sharding.spec)
    x, overflow = _change(xs, source.stacked, source.index, jnp.dtype(to.dtype), sharding)
    return x if to.sharding == x.sharding else jax.device_put(x, to.sharding), overflow


@functools.partial(jax.jit, static_argnums=(1, 2, 3, 4))
def _change(
    xs: list[jax.Array], stacked: bool, index: int | None, dtype: np.dtype, sharding: Sharding
) -> tuple[jax.Array, jax.Array | None]:
    x = jnp.stack(xs) if stacked else xs[0] if index is None else xs[0][index]
    return jax.lax.with_sharding_constraint(x.astype(dtype), sharding), _overflow(x, dtype)


def _overflow(x: jax.Array, dtype: np.dtype) -> jax.Array | None:
    return (jnp.isfinite(x) & ~jnp.isfinite(x.astype(dtype))).any() if narrows(x.dtype, dtype) else None


def _check_overflows(folder: Path, leaves: Mapping[str, np.dtype]) -> None:
    if leaves:
        to = next(iter(leaves.values()))
        raise CheckpointError(
            f"The checkpoint {folder} holds numbers that are too large for {to}, in which this run keeps its state "
            f"between steps: {_listed(list(leaves))}; keep the state in float32, or what is as wide as it was saved in."
        )


def _grow(x: jax.Array, present: LeafToFill, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array | None]:
    """What was read, padded, in the first part of a leaf that keeps its present values beyond the saved `shape`."""
    if not isinstance(present, jax.Array):
        raise TypeError("what grows must be an array of a live state: it keeps some of its values")
    to = in_default_memory(present.sharding)
    grown, overflow = _overlay(on_devices(x), on_devices(present), shape, to)
    return grown if grown.sharding == present.sharding else jax.device_put(grown, present.sharding), overflow


@functools.partial(jax.jit, static_argnums=(2, 3))
def _overlay(
    x: jax.Array, present: jax.Array, shape: tuple[int, ...], sharding: Sharding
) -> tuple[jax.Array, jax.Array | None]:
    within = [jax.lax.broadcasted_iota(jnp.int32, x.shape, dim) < size for dim, size in enumerate(shape)]
    saved = functools.reduce(jnp.logical_and, within)
    grown = jnp.where(saved, x.astype(present.dtype), present)
    return jax.lax.with_sharding_constraint(grown, sharding), _overflow(x, present.dtype)


def _empty(like: LeafToFill) -> jax.Array:
    zeros = np.zeros(like.shape, like.dtype)
    return jax.make_array_from_callback(like.shape, like.sharding, lambda index: zeros[index])


def check_files(folder: Path, head: Header) -> None:
    """Looks at what sizes and small files tell.

    Raises:
        DamagedCheckpointError: a file is not what was written; it names the file and the leaves in it.
    """
    damaged = header.damaged_files(folder, head)
    if not damaged:
        return
    file, problem = next(iter(damaged.items()))
    more = f" (and {len(damaged) - 1} more files)" if len(damaged) > 1 else ""
    lost = _leaves_in(folder, head, damaged)
    held = f"; it holds {_listed(lost)}" if lost else ""
    raise DamagedCheckpointError(
        f"The checkpoint {folder} is damaged: {file} {problem}{more}{held}; use an older checkpoint."
    )


def _leaves_in(folder: Path, head: Header, damaged: Mapping[str, str]) -> list[str]:
    """The leaves that damaged files hold: of a shortened one, those that lie beyond its end."""
    sizes = {file: (folder / file).stat() for file in damaged if (folder / file).exists()}
    if any(map(kind_of, sizes.values())):  # nothing may be opened that might be a pipe
        return []
    files = _leaves_of_files(folder)
    lost: dict[str, None] = {}
    for file in damaged:
        intact = sizes[file].st_size if file in sizes else 0
        whole_file = intact == head.files[file][0]
        lost |= {leaf: None for leaf, end in files.get(file, {}).items() if whole_file or end > intact}
    return [leaf for leaf in head.leaves if leaf in lost]


def _files_of(folder: Path, leaves: list[str]) -> list[str]:
    return [file for file, held in _leaves_of_files(folder).items() if held.keys() & set(leaves)]


def _leaves_of_files(folder: Path) -> dict[str, dict[str, int]]:
    """`arrays.leaves_of_files`, or nothing if the damage is in the tree that would tell."""
    try:
        return arrays.leaves_of_files(folder)
    except Exception:
        return {}


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
