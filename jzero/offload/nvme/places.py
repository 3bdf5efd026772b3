"""Which folder the files of a model take: each process has its own, and each model of a process too."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from jzero.errors import ConfigError, JzeroError, OffloadError
from jzero.offload.nvme.folder import NVME_KEY, Folder, holds, is_open


def open_folder(nvme_path: str | None, n_bytes: int, layout: str) -> Folder:
    """Opens this process's folder for a model; every process must call it.

    A model finds what was left by one of its layout, if no other model of this process has it.

    Raises:
        JzeroError: on every process if one of them cannot have its folder, for the others would wait for it.
    """
    root, folder, error = Path(nvme_path or ""), None, None
    number = _agreed(_number(root, layout))
    try:
        if not root.is_dir():
            raise ConfigError(f"{NVME_KEY}: {root} is not there, or no folder; name one on a disk of this machine.")
        folder = Folder(_place(root, number), n_bytes, layout)
    except JzeroError as refusal:
        error = refusal
    try:
        raise_together(error)
    except BaseException:
        if folder is not None:
            folder.close()
        raise
    assert folder is not None
    return folder


def check_alone(folder: Folder) -> None:
    """Refuses to say which of several states a model goes on from.

    Raises:
        OffloadError: another folder, which no model of this process has, holds a state of the same layout.
    """
    for place in _places(folder.path.parent.parent):
        if not is_open(place) and holds(place, folder.layout):
            raise OffloadError(
                f"{folder.path} and {place} both hold a state of such a model, and which of them is this one's "
                f"cannot be told; remove the other folder, or give each model a {NVME_KEY} of its own."
            )


def raise_together(error: JzeroError | None) -> None:
    """Raises on every process if any process has an error, which says what it is; every process must call it."""
    failed = np.array([error is not None])
    if jax.process_count() > 1:
        failed = multihost_utils.process_allgather(failed).ravel()
    if failed.any():
        raise error or ConfigError(f"{NVME_KEY}: process {failed.argmax()} cannot use it, and says why.")


def newest_common(steps: set[int]) -> int | None:
    """The newest step whose state every process has."""
    if jax.process_count() > 1:
        mine = np.array([*steps, -1, -1][:2], np.int64)
        steps = set.intersection(*[set(row) for row in multihost_utils.process_allgather(mine).tolist()])
    return max((step for step in steps if step >= 0), default=None)


def _place(root: Path, number: int) -> Path:
    name = f"process-{jax.process_index()}"
    return root / "jzero" / (name if number == 1 else f"{name}-model-{number}")


def _places(root: Path) -> Iterator[Path]:
    """The folders that are there or open, and the first that is neither."""
    for number in itertools.count(1):
        place = _place(root, number)
        yield place
        if not place.exists() and not is_open(place):
            return


def _number(root: Path, layout: str) -> int:
    """The first folder with a state of this layout, or else the first, of those that no model of this process has."""
    free = {number: place for number, place in enumerate(_places(root), 1) if not is_open(place)}
    return next((number for number, place in free.items() if holds(place, layout)), next(iter(free)))


def _agreed(number: int) -> int:
    """One number for all processes, so that what they find belongs together."""
    return int(multihost_utils.process_allgather(np.array(number)).max()) if jax.process_count() > 1 else number
