"""Writers of metrics: each is fed with a step and a dict of floats.

A writer that is given to `jzero.train.trainer` sees training metrics, and validation metrics under names that begin
with `validation_`. Only the first process makes writers.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol


class MetricWriter(Protocol):
    """What every writer can do."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records the metrics of one step."""
        ...

    def close(self) -> None:
        """Lets go of files."""
        ...


class JsonLines:
    """Appends one JSON object a line to a file, each line complete as soon as it is written.

    JSON knows neither NaN nor infinity. Such a value is written as null, and its name is listed under `non_finite`.

    Args:
        path: the file, usually `metrics.jsonl`; folders are made as needed.
        run: the run (see `jzero.train.identity`), for every line to name.
        resume_at: drop lines of steps after this one, which a resumed run takes again, and those of other runs; None
            starts an empty file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "metrics.jsonl"
        >>> writer = JsonLines(path)
        >>> writer.write(1, {"loss": 5.5, "grad_norm": float("inf")})
        >>> writer.close()
        >>> print(path.read_text().strip())
        {"step": 1, "loss": 5.5, "grad_norm": null, "non_finite": ["grad_norm"]}
    """

    def __init__(self, path: str | os.PathLike[str], *, run: str | None = None, resume_at: int | None = None):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._named: dict[str, str] = {} if run is None else {"run": run}
        kept = [] if resume_at is None or not path.exists() else _lines_up_to(path, resume_at, run)
        path.write_text("".join(kept))
        self._file = path.open("a", buffering=1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends a line."""
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        non_finite = [name for name, value in finite.items() if value is None]
        line = {"step": step, **self._named, **finite, **({"non_finite": non_finite} if non_finite else {})}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def _lines_up_to(path: Path, step: int, run: str | None) -> list[str]:
    """The lines of a run up to a step; those that name no run are of an older version, and stay."""
    kept = []
    for line in path.read_text(errors="replace").splitlines(keepends=True):
        try:
            values = json.loads(line)
            if values["step"] <= step and values.get("run", run) == run:
                kept.append(line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            break  # a line cut off by a crash: nothing after it can be trusted
    return kept
