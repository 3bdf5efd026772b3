"""Two generations of the state on disk: a step reads one and writes the other, and one moment makes it count.

A generation counts once its record is there, which is written last, when everything else would survive a loss of power.
The record also holds what lasts on the devices, so that a run can go on from the two together.
"""

import contextlib
import io
import os
import shutil
import stat
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jzero.base.files import open_file, why
from jzero.base.units import format_bytes
from jzero.checkpoint.run.lock import FolderLock
from jzero.errors import ConfigError, OffloadError
from jzero.offload.nvme.disk import File

Rest = Callable[[], dict[str, np.ndarray]]
"""Gives what lasts on the devices, as arrays of numpy's own dtypes by name."""

NVME_KEY = "zero_optimization.offload_optimizer.nvme_path"


class Folder:
    """The files of one process.

    Args:
        path: the folder, which is made if its parent is there. Another run in it is refused; what an earlier one
            left is overwritten, a generation at a time, unless it is taken up before (`adopt`).
        n_bytes: of one generation.
        layout: names, shapes and order of what is in it; another layout's files are of no use.

    Attributes:
        current: the number of the generation that holds the present state.
        layout: as given.
        lost: sentences, without full stops, on what an earlier run left and cannot be taken up.

    Raises:
        ConfigError: no such folder, no permission, too little space, or another run is there.
    """

    def __init__(self, path: Path, n_bytes: int, layout: str):
        self.path, self.layout = path, layout
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(path / "lock", path)
        except OSError as error:
            raise _unusable(path, error) from error
        self._files: list[File] = []
        # A run that is over, or an engine that nobody holds any more, leaves the folder to others.
        self._finalizer = weakref.finalize(self, _close, self._files, self._lock, path)
        try:
            self.lost = self._revoke_lost(n_bytes)
            check_space(path, 2 * n_bytes)
            for i in (0, 1):
                self._files.append(File(path / f"generation-{i}", n_bytes))
            steps = self.steps()
        except OSError as error:
            self.close()
            raise _unusable(path, error) from error
        except BaseException:
            self.close()
            raise
        _OPEN.add(path.resolve())
        self.current = min((0, 1), key=lambda i: steps.get(i, -1))
        self._counts = False
        self._before = self.current, self._counts

    def _revoke_lost(self, n_bytes: int) -> list[str]:
        """Revokes what is of no use, and says what of this layout was lost and why."""
        lost = []
        for i in (0, 1):
            if not os.path.lexists(self._record(i)):
                continue
            try:
                if self._read(i).layout != self.layout:
                    for other in (0, 1):
                        self._revoke(other)
                    return []
                if problem := _problem(self.path / f"generation-{i}", n_bytes):
                    raise OffloadError(f"{self.path / f'generation-{i}'} {problem}")
            except OffloadError as error:
                lost.append(str(error).removesuffix("."))
                self._revoke(i)
        return lost

    @property
    def file(self) -> File:
        """What holds the present state; it is written to only outside a step."""
        return self._files[self.current]

    def steps(self) -> dict[int, int]:
        """For each generation that counts, the number of training steps it has seen."""
        return {i: self._read(i).step for i in (0, 1) if self._record(i).exists()}

    def adopt(self, step: int) -> dict[str, np.ndarray]:
        """Makes the generation of a step the present one, and returns what was recorded with it."""
        self._before = self.current, self._counts
        self.current = next(i for i, at in self.steps().items() if at == step)
        self._counts = True
        record = self._read(self.current)
        self.file.sums = record.sums
        return record.rest

    def disown(self) -> None:
        """Undoes `adopt`: the present state is again what it was."""
        self.current, self._counts = self._before

    def replace(self) -> File:
        """The file for a state that does not come from the present one; it becomes the present one at once."""
        if self._counts:
            self.current, self._counts = 1 - self.current, False
        self._revoke(self.current)
        return self.file

    def begin(self, step: int, rest: Rest) -> File:
        """Begins a step: makes the present state count, and returns the file for the next one.

        Args:
            step: training steps taken so far.
            rest: what lasts on the devices; asked only if needed.
        """
        if not self._counts:
            self._settle(self.current, step, rest)
            self._counts = True
        self._revoke(1 - self.current)
        return self._files[1 - self.current]

    def commit(self, step: int, rest: Rest) -> None:
        """Ends a step: what was written is the present state from now on."""
        self._settle(1 - self.current, step, rest)
        self.current = 1 - self.current

    def close(self) -> None:
        """Lets other runs use the folder; the files stay."""
        self._finalizer()

    def _record(self, generation: int) -> Path:
        return self.path / f"generation-{generation}.whole.npz"

    def _read(self, generation: int) -> "_Record":
        return _read_record(self._record(generation))

    def _revoke(self, generation: int) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._record(generation).unlink()
            self._sync_folder()

    def _settle(self, generation: int, step: int, rest: Rest) -> None:
        contents, named = io.BytesIO(), {f"rest/{name}": data for name, data in rest().items()}
        sums = np.array([(at, *facts) for at, facts in self._files[generation].sums.items()], np.int64)
        own = {"step": np.int64(step), "layout": np.array(self.layout), "sums": sums.reshape(-1, 3)}
        arrays: dict[str, np.ndarray | np.int64] = {**own, **named}
        np.savez(contents, **arrays)  # pyright: ignore[reportArgumentType]: no array is named `allow_pickle`
        unfinished = self.path / f"generation-{generation}.part"
        try:
            self._files[generation].sync()
            unfinished.unlink(missing_ok=True)  # it may be a link
            with unfinished.open("xb") as file:
                file.write(contents.getbuffer())
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(self._record(generation))
            self._sync_folder()
        except OSError as error:
            raise OffloadError(f"{unfinished} could not be written: {error.strerror}.") from error

    def _sync_folder(self) -> None:
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class _Record(NamedTuple):
    """What makes a generation count: its step and layout, what lasted on the devices, and checksums (`File.sums`)."""

    step: int
    layout: str
    rest: dict[str, np.ndarray]
    sums: dict[int, tuple[int, int]]


def _read_record(file: Path) -> _Record:
    try:
        with open_file(file) as opened, np.load(opened) as npz:
            arrays: dict[str, np.ndarray] = dict(npz)
        if lacks := {"step", "layout", "sums"} - arrays.keys():
            raise ValueError(f"it lacks {min(lacks)}")
        step, layout, sums = arrays["step"], arrays["layout"], arrays["sums"]
        if step.shape or step.dtype != np.int64 or layout.shape or layout.dtype.kind != "U":
            raise ValueError("its step or its layout is none")
        if sums.dtype != np.int64 or sums.ndim != 2 or sums.shape[1] != 3:
            raise ValueError("its checksums are none")
        rest = {name.removeprefix("rest/"): x for name, x in arrays.items() if name.startswith("rest/")}
        return _Record(step.item(), layout.item(), rest, {at: (size, sum_) for at, size, sum_ in sums.tolist()})
    except Exception as error:  # numpy, zipfile and zlib each have their own
        raise OffloadError(f"{file} could not be read: {why(error)}.") from error


def _problem(file: Path, n_bytes: int) -> str | None:
    """Why a file of the state is not what its record is for, if it is not; before anything makes it longer."""
    try:
        status = file.lstat()
    except OSError as error:
        return f"could not be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return "is no file"
    return None if status.st_size == n_bytes else f"has {status.st_size} bytes instead of {n_bytes}"


_OPEN: set[Path] = set()
"""The folders that this process has open."""


def is_open(path: Path) -> bool:
    """Whether this process has a folder open."""
    return path.resolve() in _OPEN


def holds(path: Path, layout: str) -> bool:
    """Whether an earlier run of the same layout has left a state in a folder, whole or not."""
    for record in sorted(path.glob("generation-?.whole.npz")):
        try:
            if _read_record(record).layout == layout:
                return True
        except OffloadError:
            continue
    return False


def _close(files: list[File], lock: FolderLock, path: Path) -> None:
    for file in files:
        file.close()
    _OPEN.discard(path.resolve())
    lock.release()


def check_space(path: Path, n_bytes: int) -> None:
    """Refuses a state that a disk has no room for; files of an earlier run there count as room.

    Raises:
        ConfigError: with what is needed and what there is.
    """
    ours = sum(file.stat().st_blocks * 512 for file in path.glob("generation-?"))
    free = shutil.disk_usage(path).free + ours
    if n_bytes > free:
        raise ConfigError(
            f"the optimizer's state takes {format_bytes(n_bytes)} in {path} (twice its size, so that a step is applied "
            f"wholly or not at all), and {format_bytes(free)} are free; set {NVME_KEY} to a larger disk."
        )


def _unusable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{NVME_KEY}: {path} cannot be used: {why(error)}; name a folder on a disk of this machine.")
