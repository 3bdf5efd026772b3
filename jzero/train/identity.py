"""Which run a folder belongs to: a name that its first start makes up, and every resume and requeue keeps.

It lies in the run's folder, its checkpoints have it in their metadata and its metrics in every line. So what another
run left in the folder is told apart, wherever files were copied to.
"""

import contextlib
import json
import os
import secrets
import time
from pathlib import Path

from jzero.checkpoint import read_header
from jzero.errors import CheckpointError, DamagedCheckpointError

FILE = "jzero-run.json"

_MOST_BYTES = 4096


def new_run() -> str:
    """A name that no other run has.

    Example:
        >>> len(new_run()), new_run() != new_run()
        (12, True)
    """
    return secrets.token_hex(6)


def run_of_folder(folder: Path) -> str | None:
    """The run whose folder this is; None if it is nobody's, or that of an older version.

    Raises:
        CheckpointError: the file that tells is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        with file.open("rb") as opened:
            run = json.loads(opened.read(_MOST_BYTES))["run"]
        if not isinstance(run, str) or not run:
            raise ValueError(f"run is {run!r}")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise CheckpointError(
            f"{file} does not say which run this folder belongs to ({type(error).__name__}: {error}); remove it, and "
            "the newest checkpoint decides."
        ) from None
    return run


def run_of_checkpoint(path: Path) -> str | None:
    """The run that made a checkpoint; None for an older version's, and for one that no `jzero train` made.

    Raises:
        CheckpointError: it is damaged.
    """
    extra = read_header(path)[1].metadata.get("extra")
    run = extra.get("run") if isinstance(extra, dict) else None
    return run if isinstance(run, str) else None


def may_be_of(path: Path, runs: set[str | None]) -> bool:
    """Whether a checkpoint is of one of these runs, or damaged, so that nobody can tell."""
    try:
        return run_of_checkpoint(path) in runs
    except DamagedCheckpointError:
        return True


def mark(folder: Path, run: str) -> None:
    """Says whose folder this is from now on.

    Raises:
        OSError: it cannot be written.
    """
    with contextlib.suppress(CheckpointError):
        if run_of_folder(folder) == run:
            return
    unnamed = folder / f".{FILE}"
    text = json.dumps({"run": run, "since": time.strftime("%Y-%m-%d %H:%M:%S %Z")})
    unnamed.unlink(missing_ok=True)
    with unnamed.open("x") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    unnamed.replace(folder / FILE)
