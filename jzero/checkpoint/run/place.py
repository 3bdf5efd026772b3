"""Where checkpoints are: complete ones by name, those that a killed process was about to put in place, and leftovers.

A checkpoint is written beside its final place, completed there, and then swapped in by renaming; at every moment either
the old one or the new one is complete under a name that `find` looks at.
"""

import errno
import os
import re
import shutil
import time
from pathlib import Path

from jzero.checkpoint.format.header import STAGED, age, is_complete
from jzero.errors import CheckpointError

REMOVED = ".removed"
"""How the name ends of a checkpoint that is being removed."""

_NUMBERED = re.compile(rf"\.?.*-(?P<step>[0-9]+)({re.escape(STAGED)})?")


def staging(path: Path) -> Path:
    """The folder beside `path` in which a checkpoint is made before it takes its place."""
    return path.with_name(f".{path.name}{STAGED}")


def _outdated(path: Path) -> Path:
    """Where a checkpoint is while another one takes its place."""
    return path.with_name(f"{staging(path).name}.outdated")


def find(path: str | os.PathLike[str]) -> Path:
    """The complete checkpoint that a path stands for: it, the newest in it, or the one whose swap was cut short.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path).absolute()
    _check_name(path)
    if is_complete(path):
        return path
    if not path.exists():
        if is_complete(staging(final(path))):
            return staging(final(path))
        raise CheckpointError(f"There is no checkpoint at {path}: the folder does not exist.")
    if inside := complete_in(path):
        return inside[-1][1]
    raise CheckpointError(
        f"{path} holds no complete checkpoint; give the folder that a checkpoint was saved to, or that of a run."
    )


def complete_in(folder: Path) -> list[tuple[int, Path]]:
    """The complete checkpoints of a run's folder, named `...-STEP`, with their steps, in the order they were made.

    That is not the order of steps where a new run has begun in the folder of an older one, nor that of clocks, which
    differ between machines. One whose header is damaged may be of any age: it counts as newest, so that nobody takes an
    older one for the newest without hearing of it.
    """
    found = _by_step(folder)
    ages = {step: age(path) for step, path in found.items()}
    return sorted(found.items(), key=lambda item: (ages[item[0]] is None, ages[item[0]] or (), item[0]))


def next_order(folder: Path) -> int:
    """What a checkpoint gets that is made in a folder: more than any other in it has."""
    return 1 + max((known.order for path in _by_step(folder).values() if (known := age(path))), default=0)


def _by_step(folder: Path) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for path in sorted(folder.iterdir(), reverse=True) if folder.is_dir() else ():  # a final name after a hidden one
        if (at := _NUMBERED.fullmatch(path.name)) and is_complete(path):
            found[int(at["step"])] = path
    return found


def make_folder(path: Path) -> None:
    """Makes a folder and those around it, if they are not there."""
    _check_name(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None


def final(path: str | os.PathLike[str]) -> Path:
    """Where a checkpoint that is saved to a path comes to lie: behind a link, in the place that the link leads to."""
    path = Path(path).absolute()
    return path.resolve() if path.is_symlink() else path


def _check_name(path: Path) -> None:
    r"""Refuses what the libraries that read and write arrays take for another place: `\` for `/`, `gs:/` for a URL."""
    if found := next((part for part in ("\\", "gs:/") if part in f"{path.absolute()}/"), None):
        raise CheckpointError(
            f"{path} cannot hold a checkpoint: where its arrays are written, {found.rstrip('/')!r} in a path means "
            "another place; choose another name, or rename the folder."
        )


def make_room(path: Path) -> None:
    """Clears the way for a checkpoint, and refuses to replace what is none."""
    _check_name(path)
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
    if path.exists() and not is_complete(path):
        raise CheckpointError(
            f"{path} already exists and is not a checkpoint; it is left alone: choose another folder or remove it."
        )
    recover(path)


def swap_in(path: Path) -> None:
    """Puts a complete checkpoint in its place; one that is there already goes."""
    if path.exists():
        path.rename(_outdated(path))
    staging(path).rename(path)
    _delete(_outdated(path))


def recover(path: Path) -> None:
    """Finishes a swap that was cut short, and clears away what is not complete."""
    if not path.exists():
        candidates = (staging(path), _outdated(path))
        if found := next((folder for folder in candidates if is_complete(folder)), None):
            found.rename(path)
    for leftover in _leftovers(path):
        _delete(leftover)


def clear(path: Path) -> None:
    """The same after a save that has failed, whose threads may still be writing for a moment."""
    for _ in range(100):
        recover(path)
        time.sleep(0.02)
        if not _leftovers(path):
            return


def _leftovers(path: Path) -> list[Path]:
    """What saves of a checkpoint have not finished or put aside."""
    beside = path.parent.iterdir() if path.parent.is_dir() else ()
    return [entry for entry in beside if entry.name.startswith(staging(path).name)]


def tidy(folder: Path) -> None:
    """Finishes and clears away what killed processes left in a run's folder that nobody else writes to."""
    for entry in list(folder.iterdir()):
        if entry.name.startswith(".") and entry.name.endswith(REMOVED):
            _delete(entry)
        elif found := re.fullmatch(rf"\.(.*-[0-9]+){re.escape(STAGED)}.*", entry.name):
            recover(folder / found[1])
        elif re.fullmatch(r"\..*-[0-9]+\.lock", entry.name):
            entry.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Removes a checkpoint so that no half of it can be taken for one; of a link, the link."""
    doomed = path.with_name(f".{path.name}{REMOVED}")
    path.rename(doomed)
    _delete(doomed)


def _delete(path: Path) -> None:
    """Deletes a folder with what is in it, as far as it can be deleted, or a link."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)
