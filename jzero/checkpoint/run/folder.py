"""A run's folder of checkpoints: one writer, the newest kept, failures survived, and the way back in."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import jax

from jzero.base.types import Json
from jzero.checkpoint.format import header
from jzero.checkpoint.run.lock import FolderLock
from jzero.checkpoint.run.place import complete_in, make_folder, remove, tidy
from jzero.checkpoint.run.processes import on_first_process
from jzero.checkpoint.run.saving import Saving
from jzero.errors import CheckpointError, DamagedCheckpointError
from jzero.launch.heartbeat import tell

T = TypeVar("T")

RETRY_SECONDS = 60.0
"""How long after a failed save the next one is due, if none is due earlier."""


class Saves(Protocol):
    """What `Checkpoints` needs of an engine."""

    def save_checkpoint(self, path: Path, extra: dict[str, Json] | None = None, *, wait: bool = True) -> Saving:
        """See `jzero.Engine`."""
        ...


class Checkpoints:
    """Saves an engine's state to `FOLDER/checkpoint-STEP`, in the background.

    A save that fails does not stop training: it is reported, and due again after a minute. Every process makes one and
    calls the same methods, except `due` and `tick`.

    Args:
        engine: whose state is saved.
        folder: is made if it is not there; one run at a time may have it.
        max_to_keep: how many checkpoints stay, the newest ones, by the order in which they were made; all by default.
            One whose header is damaged is not counted and stays.
        keep_every: checkpoints whose step is a multiple of this stay in any case.
        save_minutes: a save is due when so many minutes have passed since the last one began.
        report: called with one sentence for each failed save, on the first process.

    Raises:
        CheckpointError: the folder cannot be made, or another run has it.

    Example:
        `with Checkpoints(engine, "runs/a", max_to_keep=3) as checkpoints: ... checkpoints.save(step)`
    """

    def __init__(
        self,
        engine: Saves,
        folder: str | os.PathLike[str],
        *,
        max_to_keep: int | None = None,
        keep_every: int | None = None,
        save_minutes: float | None = None,
        report: Callable[[str], None] = lambda sentence: None,
    ):
        self.folder = Path(folder).absolute()
        self._engine, self._report = engine, report
        self._max_to_keep, self._keep_every, self._save_minutes = max_to_keep, keep_every, save_minutes
        self._saving: Saving | None = None
        self._reported, self._step = False, -1
        self._saved: list[Path] = []
        self._left_alone: frozenset[Path] = frozenset()
        self._refused: CheckpointError | None = None
        self._began = time.monotonic()
        self._retry_at: float | None = None
        self._lock: FolderLock | None = None
        on_first_process(self._take)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is."""
        return self.folder / f"checkpoint-{step}"

    def leave_alone(self, paths: Iterable[Path]) -> None:
        """Names checkpoints in the folder that are another run's: they are neither removed nor replaced."""
        self._left_alone = frozenset(paths)

    def due(self) -> bool:
        """Whether minutes have passed or a failed save is to be repeated; the first process's answer counts for all."""
        now = time.monotonic()
        if self._retry_at is not None:
            return now >= self._retry_at
        return self._save_minutes is not None and now - self._began >= 60 * self._save_minutes

    def tick(self) -> None:
        """Tidies up after a save that has finished meanwhile; cheap enough for every step."""
        if self._saving is not None and self._saving.done and not self._reported:
            self._reported = True
            self._after(self._saving.error)

    def save(self, step: int, extra: Mapping[str, Json] | None = None) -> None:
        """Starts a save, after the one before it is finished. Failures are reported, not raised."""
        self._settle()
        self._began, self._retry_at, self._refused = time.monotonic(), None, None
        try:
            if (path := self.path(step)) in self._left_alone:
                raise CheckpointError(f"{path} is a checkpoint of another run; it is left alone, and none saved.")
            self._saving = self._engine.save_checkpoint(self.path(step), dict(extra or {}), wait=False)
            self._reported, self._step = False, step
        except CheckpointError as error:
            self._refused = error
            self._after(error)

    def finish(self) -> None:
        """Waits until the last save is complete.

        Raises:
            CheckpointError: it could not be written.
        """
        if error := self._settle() or self._refused:
            raise error

    def close(self) -> None:
        """Waits for the last save and lets other runs have the folder."""
        try:
            self._settle()
        finally:
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    def _take(self) -> None:
        try:
            make_folder(self.folder)
            self._lock = FolderLock(self.folder / ".lock", self.folder)
            tidy(self.folder)
        except OSError as error:
            raise CheckpointError(f"cannot write to {self.folder}: {error.strerror}.") from None

    def _settle(self) -> CheckpointError | None:
        if self._saving is None:
            return None
        try:
            self._saving.wait()
            error = None
        except CheckpointError as failure:
            error = failure
        if not self._reported:
            self._after(error)
        self._saving = None
        return error

    def _after(self, error: CheckpointError | None) -> None:
        if error is not None:
            self._retry_at = time.monotonic() + RETRY_SECONDS
        if jax.process_index() != 0:
            return
        if error is not None:
            self._report(str(error))
        elif self._saving is not None:
            tell({"saved": self._step})  # a launcher counts restarts from here
            self._saved = [*(path for path in self._saved if path != self._saving.path), self._saving.path]
            try:
                self._prune()
            except OSError as failure:
                self._report(f"An old checkpoint in {self.folder} could not be removed: {failure.strerror}.")

    def _prune(self) -> None:
        """Removes what is neither among the newest nor kept for its step.

        Nor what this process saved last, whatever its headers say, nor one whose header is damaged: nobody knows how
        new it is.
        """
        if self._max_to_keep is None:
            return
        known = [
            (step, path)
            for step, path in complete_in(self.folder)
            if path not in self._left_alone and header.age(path) is not None
        ]
        for step, path in known[: -self._max_to_keep]:
            own = path in self._saved[-self._max_to_keep :]
            if not own and not (self._keep_every and step % self._keep_every == 0):
                remove(path)


def load_newest(
    folder: str | os.PathLike[str], load: Callable[[Path], T], *, without: Sequence[Path] = ()
) -> tuple[Path, T, list[str]] | None:
    """Loads the newest checkpoint of a folder that is complete and whole; every process must call it.

    Args:
        folder: a run's folder; it need not exist.
        load: loads one checkpoint, such as `engine.load_checkpoint`.
        without: checkpoints in it that do not count, such as those of another run.

    Returns:
        The checkpoint, what `load` returned, and a sentence for each damaged one that was passed over; None if there is
        no checkpoint.

    Raises:
        CheckpointError: the newest whole one is of another model, or all of them are damaged.
    """
    passed_over = []
    for path in [path for _, path in reversed(complete_in(Path(folder).absolute())) if path not in without]:
        try:
            return path, load(path), passed_over
        except DamagedCheckpointError as error:
            passed_over.append(str(error))
    if passed_over:
        raise CheckpointError(f"Every checkpoint in {folder} is damaged. {passed_over[0]}")
    return None
