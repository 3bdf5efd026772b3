"""Saving: the true arrays of a state and a JSON object, in the background, committed in one moment or not at all."""

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from jzero.base.types import Json, Placements, PyTree
from jzero.checkpoint.format import arrays, checksum, header
from jzero.checkpoint.format.header import Header, Leaf
from jzero.checkpoint.format.leaves import by_name, true_shapes, without_padding
from jzero.checkpoint.run.lock import FolderLock
from jzero.checkpoint.run.place import clear, final, make_folder, make_room, next_order, recover, staging, swap_in
from jzero.checkpoint.run.processes import agree, on_first_process
from jzero.checkpoint.run.selection import Selection
from jzero.errors import CheckpointError

PathLike = str | os.PathLike[str]

_WRITER = ThreadPoolExecutor(1, "saving")
"""The thread that saves; it waits for the next one, since a save that had to start it would stall training."""


class Saving:
    """A save that is under way.

    Attributes:
        path: where the checkpoint will be.
    """

    def __init__(self, path: Path, work: Callable[[], None]):
        self.path = path
        self._error: CheckpointError | None = None
        self._finished = _WRITER.submit(self._run, work)

    @property
    def done(self) -> bool:
        """Whether this process has finished its part."""
        return self._finished.done()

    @property
    def error(self) -> CheckpointError | None:
        """What has gone wrong on this process so far."""
        return self._error

    def wait(self) -> None:
        """Waits until the checkpoint is complete; every process must call it.

        Raises:
            CheckpointError: it could not be written; an older one is still there.
        """
        self._finished.result()
        agree(self._error)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # Orbax, tensorstore and the file system each have their own
            self._error = _sentence(self.path, error)


def save(
    path: PathLike, state: PyTree, metadata: Json, *, placements: Placements = None, only: tuple[str, ...] = ("*",)
) -> Saving:
    """Starts to write a checkpoint, replacing one that is already there; every process must call it.

    Args:
        path: the folder that will hold it, on a file system all processes share; its parents are created.
        state: pytree of `jax.Array`s, global ones where there are several processes (scalars too: replicated). Their
            memory may be reused as soon as this returns.
        metadata: anything JSON can hold.
        placements: a pytree like `state` of `jzero.sharding.placement.Placement`s, if its arrays are padded.
        only: globs over the leaves' paths: what to save.

    Returns:
        The save under way: `wait` for it before the program ends and before the next one.

    Raises:
        CheckpointError: the folder holds something else or another run writes to it, the metadata is no JSON, or it
            cannot be written, as far as that is known at once.
    """
    path = final(path)
    _check_metadata(path, metadata)
    shapes = true_shapes(state, placements)
    chosen = {name: x for name, x in by_name(state).items() if Selection(only=only).chooses(name)}
    leaves = without_padding({name: x for name, x in chosen.items() if x.size}, shapes)
    lock: list[FolderLock] = []

    def prepare() -> None:
        try:
            make_folder(path.parent)
            lock.append(FolderLock(path.with_name(f".{path.name}.lock"), path))
            make_room(path)
        except OSError as error:
            raise _sentence(path, error) from error

    def leave(tidy: Callable[[Path], None]) -> None:
        """Removes what is unfinished, and lets others write."""
        if lock:  # without it, what lies there may be another run's
            with contextlib.suppress(OSError):
                tidy(path)
            lock.pop().release()

    def start() -> tuple[Callable[[], None], checksum.Sums]:
        try:
            return arrays.start_writing(staging(path), leaves), checksum.start(leaves, shapes)
        except Exception as error:  # Orbax, tensorstore and the file system each have their own
            agree(_sentence(path, error))
            raise

    try:
        on_first_process(prepare)
        write, sums = start()
        agree(None)
        # Several processes add their sums up here, where they all are; a single one does so in the background.
        several = checksum.finish(sums) if jax.process_count() > 1 else None
    except BaseException:
        leave(clear)
        raise

    def finish() -> None:
        try:
            write()
            if jax.process_index() == 0:
                texts = checksum.finish(sums) if several is None else several
                described = {name: Leaf(shapes[name], str(x.dtype), texts.get(name, "")) for name, x in chosen.items()}
                files, order = header.describe_files(staging(path)), next_order(path.parent)
                header.write(staging(path), Header(described, files, metadata, order))
                swap_in(path)
        except BaseException:
            leave(clear)
            raise
        leave(recover)

    return Saving(path, finish)


def _check_metadata(path: Path, metadata: Json) -> None:
    try:
        header.check_metadata(metadata)
    except ValueError as error:
        raise CheckpointError(f"The metadata of the checkpoint {path} cannot be written as JSON: {error}.") from error


def _sentence(path: Path, error: BaseException) -> CheckpointError:
    return CheckpointError(f"The checkpoint {path} could not be written: {arrays.reason(error)}.")
