"""Where a training run begins: at its first step, or where a checkpoint says, under whatever it was saved.

A folder holds the checkpoints of one run. So a new run is refused where another one's are, unless it is told to
overwrite them, and a run that goes on takes none but its own.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp

from jzero.base.types import Json
from jzero.checkpoint import load_newest, read_header
from jzero.checkpoint.run.place import complete_in, remove
from jzero.checkpoint.run.processes import on_first_process
from jzero.engine import Engine
from jzero.errors import CheckpointError, ConfigError
from jzero.launch.agreement import agree
from jzero.train.identity import mark, may_be_of, new_run, run_of_checkpoint, run_of_folder
from jzero.train.position import Facts, find_position, schedule_change

LAYER_FORMS = {"h/*": "h", "h_*": "h"}
"""How the families that jzero ships name unrolled layers and scanned ones, in NNX and in Linen."""

METRICS = "metrics.jsonl"

Log = Callable[[str], None]


class Start(NamedTuple):
    """Where a run begins.

    Attributes:
        run: which run this is (see `jzero.train.identity`).
        step: how many steps were taken before.
        next_batch: the index of the first batch to take, in batches of this run's size.
        checkpoint: where the state comes from; None for a new run.
        others: checkpoints in the folder that are another run's.
        saved: what the checkpoint says of the run beside its state.
    """

    run: str
    step: int = 0
    next_batch: int = 0
    checkpoint: Path | None = None
    others: tuple[Path, ...] = ()
    saved: Mapping[str, Json] = MappingProxyType({})


def load_start(
    engine: Engine,
    folder: Path,
    resume: Path | Literal["auto"] | None,
    log: Log,
    *,
    now: Facts,
    overwrite: bool = False,
) -> Start:
    """Loads the state that a run begins with; every process must call it.

    Args:
        engine: gets the state.
        folder: the run's folder, in which "auto" looks.
        resume: a checkpoint or a folder of checkpoints, "auto", or None for a new run.
        log: is told what was chosen, and what is not as it was.
        now: what decides the order of the text and the schedule.
        overwrite: whether checkpoints of other runs may be in the folder, for `claim` to remove.

    Raises:
        CheckpointError: what is given is no complete checkpoint of this model, or the folder is another run's.
    """
    if resume == "auto":
        return _load_own(engine, folder, log, now)
    if resume is None:
        on_first_process(lambda: check_new(folder, overwrite=overwrite))
        return Start(new_run())
    path, head = read_header(resume)
    agree({f"the newest checkpoint of {resume}": path.name, "its order": head.order})
    inside = path.parent.resolve() == folder.resolve()
    run = run_of_checkpoint(path) or (run_of_folder(folder) if inside else None) or new_run()
    others = _others(folder, {run, None} if inside else {run})
    on_first_process(lambda: _refuse(folder, others, overwrite))
    start = _start(engine, path, engine.load_checkpoint(path, layers=LAYER_FORMS), now, log)
    _tell_later_ones(folder, start.step, log)
    return start._replace(run=run)


def claim(folder: Path, start: Start, log: Log, *, overwrite: bool = False) -> None:
    """Makes a folder the one of a run that begins; only the first process calls it.

    Args:
        folder: the run's.
        start: how the run begins.
        log: is told what is removed.
        overwrite: whether other checkpoints go.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    try:
        removed = [path for _, path in complete_in(folder)] if overwrite else []
        for path in removed:
            remove(path)
        if removed:
            log(f"Removed what an earlier run left in {folder}, as --overwrite says: {_named(removed)}.")
        metrics = folder / METRICS
        if start.checkpoint is None and metrics.is_file() and metrics.stat().st_size:
            log(f"{metrics} of an earlier run is replaced.")
        mark(folder, start.run)
    except OSError as error:
        raise CheckpointError(f"cannot write to {folder}: {error.strerror}.") from None


def check_new(folder: Path, *, overwrite: bool) -> None:
    """Refuses a new run in a folder with checkpoints, unless they are to be overwritten.

    Raises:
        CheckpointError: there are some, or nobody can see whether there are.
    """
    try:
        found = [path for _, path in complete_in(folder)]
    except OSError as error:
        raise CheckpointError(f"training_arguments.output_dir: cannot read {folder}: {error.strerror}.") from None
    _refuse(folder, found, overwrite)


def check_overwrite(folder: Path, sources: Mapping[str, Path | Literal["auto"] | None]) -> None:
    """Refuses to overwrite what the run begins with.

    Args:
        folder: the run's.
        sources: what the run begins with, by option.

    Raises:
        ConfigError: a source lies in the folder.
    """
    for option, source in sources.items():
        if source == "auto" or (source is not None and folder.resolve() in (source.resolve(), source.resolve().parent)):
            what = folder if source == "auto" else source
            raise ConfigError(f"--overwrite would remove {what}, which {option} begins with; leave one of them out.")


def next_rate(engine: Engine) -> float | None:
    """The learning rate of the step to come, if a schedule that is known sets it."""
    schedule = engine.functional.spec.schedule
    if schedule is None:
        return None
    with jax.numpy_dtype_promotion("standard"):  # as the optimizer calls it
        return float(jnp.asarray(schedule(jnp.asarray(int(engine.state.applied_steps), jnp.int32))))


def _load_own(engine: Engine, folder: Path, log: Log, now: Facts) -> Start:
    """The newest whole checkpoint of the folder's own run, or its first step."""
    run = run_of_folder(folder)
    agree({f"what lies in {folder}": ", ".join(path.name for _, path in complete_in(folder)), "its run": run})
    others = _others(folder, {run, None}) if run else []

    def load(path: Path) -> dict[str, Json]:
        _refuse_other_seed(path, now)
        return engine.load_checkpoint(path, layers=LAYER_FORMS)

    found = load_newest(folder, load, without=others)
    for path in others:
        log(f"{path} is of another run than {folder}: it is passed over and left alone.")
    if found is None:
        on_first_process(lambda: _refuse(folder, others, False))
        log(f"No checkpoint in {folder} yet: a new run.")
        return Start(run or new_run())
    path, facts, passed_over = found
    for sentence in passed_over:
        log(sentence)
    start = _start(engine, path, facts, now, log)
    return start._replace(run=run or run_of_checkpoint(path) or new_run(), others=tuple(others))


def _refuse_other_seed(path: Path, now: Facts) -> None:
    """A requeued job has the seed it had; another seed is most likely another run, in a folder that was not its own."""
    extra = read_header(path)[1].metadata.get("extra")
    seed = extra.get("seed", now.seed) if isinstance(extra, dict) else now.seed
    if seed != now.seed:
        raise CheckpointError(
            f"{path} is of a run with training_arguments.seed {seed}, and this one has {now.seed}: --resume auto goes "
            f"on with its own run only. Give --resume {path} to go on with that one all the same; a new run needs "
            "another training_arguments.output_dir, or --overwrite."
        )


def _start(engine: Engine, path: Path, saved: dict[str, Json], now: Facts, log: Log) -> Start:
    step = int(engine.state.step)
    log(f"Going on from {path}, after step {step}.")
    at = find_position(saved, now, step)
    for sentence in at.sentences:
        log(sentence)
    if changed := schedule_change(saved, now, next_rate(engine)):
        log(changed)
    return Start("", step, at.next_batch, path, saved=saved)


def _others(folder: Path, runs: set[str | None]) -> list[Path]:
    """The checkpoints in a folder that are of none of these runs."""
    return [path for _, path in complete_in(folder) if not may_be_of(path, runs)]


def _refuse(folder: Path, others: Sequence[Path], overwrite: bool) -> None:
    if others and not overwrite:
        raise CheckpointError(
            f"{folder} holds checkpoints of another run ({_named(others)}), which this one would mix with or remove: "
            "choose another training_arguments.output_dir, go on with that run by --resume auto, or remove its "
            "checkpoints by --overwrite."
        )


def _tell_later_ones(folder: Path, step: int, log: Log) -> None:
    if later := [path for its_step, path in sorted(complete_in(folder)) if its_step > step]:
        log(
            f"{folder} also has later checkpoints ({_named(later)}); each stays until this run reaches its step, or "
            "training_arguments.save_total_limit removes it."
        )


def _named(paths: Sequence[Path]) -> str:
    names = [path.name for path in paths]
    return ", ".join(names if len(names) <= 4 else [*names[:2], f"{len(names) - 3} more", names[-1]])
