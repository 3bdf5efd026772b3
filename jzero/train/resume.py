"""Where a training run begins: at its first step, or where a checkpoint says, under whatever it was saved."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from jzero.base.types import Json
from jzero.checkpoint import load_newest
from jzero.engine import Engine

LAYER_FORMS = {"h/*": "h", "h_*": "h"}
"""How the families that jzero ships name unrolled layers and scanned ones, in NNX and in Linen."""


class Start(NamedTuple):
    """Where a run begins.

    Attributes:
        step: how many steps were taken before.
        next_batch: the index of the first batch to take, in batches of this run's size.
        checkpoint: where the state comes from; None for a new run.
    """

    step: int = 0
    next_batch: int = 0
    checkpoint: Path | None = None


def load_start(
    engine: Engine, folder: Path, resume: Path | Literal["auto"] | None, log: Callable[[str], None]
) -> Start:
    """Loads the state that a run begins with; every process must call it.

    Args:
        engine: gets the state.
        folder: the run's folder, in which "auto" looks.
        resume: a checkpoint or a folder of checkpoints, "auto", or None for a new run.
        log: is told what "auto" chose.

    Raises:
        CheckpointError: what is given is no complete checkpoint of this model.
    """
    load = lambda path: engine.load_checkpoint(path, layers=LAYER_FORMS)
    if resume is None:
        return Start()
    if resume != "auto":
        return _start(engine, resume, load(resume))
    found = load_newest(folder, load)
    if found is None:
        log(f"No checkpoint in {folder} yet: a new run.")
        return Start()
    path, facts, passed_over = found
    for sentence in passed_over:
        log(sentence)
    start = _start(engine, path, facts)
    log(f"Going on from {path}, after step {start.step}.")
    return start


def _start(engine: Engine, path: Path, facts: dict[str, Json]) -> Start:
    """The data position counts batches; one that falls between two of another size goes back to the earlier one."""
    rows = engine.config.train_batch_size
    step = int(engine.state.step)
    next_batch = facts.get("next_batch", step) * facts.get("rows", rows) // rows
    return Start(step, next_batch, path)
