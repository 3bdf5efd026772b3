"""The training loop behind `jzero train`: a run file becomes an engine, and the engine is driven to the last step.

Every process runs the same steps on its own rows of each batch; only the first one prints and writes metrics. The loop
reads each step's metrics while the next step already runs, so the devices never wait for the host.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh
from rich.console import Console

from jzero import models
from jzero.base.terminal import escape
from jzero.checkpoint import Checkpoints
from jzero.config import Config, RunConfig, TrainingArguments
from jzero.config.show.display import config_view
from jzero.engine import Engine
from jzero.errors import CheckpointError, ConfigError
from jzero.explain.memory import memory_table
from jzero.plan.search.auto import resolve_auto
from jzero.schedules import hf_schedule
from jzero.sharding.mesh import mesh_for, n_data_shards
from jzero.start import initialize
from jzero.train.data import VOCAB_SIZE, Corpus, Windows, load_corpus
from jzero.train.monitor import ConsoleView, JsonLines, MetricWriter, event_writers
from jzero.train.resume import LAYER_FORMS, Start, load_start
from jzero.train.signals import Interrupts, interrupts

VALIDATION_WINDOWS = 256
"""An evaluation reads about this many windows of the validation text, the same ones every time."""


@dataclass(frozen=True)
class Run:
    """A run that is ready to start.

    Attributes:
        engine: holds the model.
        corpus: the text.
        n_steps: optimizer steps of the whole run.
        config: the run file.
    """

    engine: Engine
    corpus: Corpus
    n_steps: int
    config: RunConfig


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes:
        step: steps taken in all.
        metrics: the last training metrics, and `validation_loss`.
        checkpoint: the last checkpoint.
        interrupted: stopped before `n_steps`.
        seconds: from the first step's compilation to the end.
        signal: the number of the signal that stopped it, or 0.
    """

    step: int
    metrics: Mapping[str, float]
    checkpoint: Path
    interrupted: bool
    seconds: float
    signal: int = 0


def prepare(config: RunConfig, *, base: Path = Path(), mesh: Mesh | None = None) -> Run:
    """Builds everything that a run file names.

    Args:
        config: from `jzero.config.load_run`.
        base: the folder of the run file, which globs are relative to.
        mesh: all devices on the `shard` axis by default.

    Raises:
        JzeroError: whatever does not fit, in one sentence.
    """
    arguments, model = config.training_arguments, language_model(config)
    corpus = load_corpus(config.data, base=base, seed=arguments.seed)
    known: dict[str, Any] = {"training_arguments": arguments, "hidden_size": model.hidden_size}
    facts = {**known, "world": len(jax.devices()) if mesh is None else n_data_shards(mesh)}
    # The schedule may need the number of steps, and that needs the batch size: what is known so far decides that.
    rows = config.deepspeed.resolve(**facts, partly=True).train_batch_size
    what = {"model": model.factory, "loss_fn": model.loss_fn, "sample_batch": corpus.train.batch(0, rows)}
    given = resolve_auto(config.deepspeed, mesh=mesh, **what, **known)
    mesh = mesh_for(given) if mesh is None else mesh
    n_steps = arguments.max_steps
    if n_steps < 1:
        n_steps = math.ceil(arguments.num_train_epochs * max(1, corpus.train.n_windows // rows))
    deepspeed = given.resolve(**facts, num_training_steps=n_steps)
    has_schedule = deepspeed.scheduler is not None and deepspeed.scheduler.type is not None
    engine = initialize(
        **what,
        config=deepspeed,
        schedule=None if has_schedule else hf_schedule(_with_rate_of(deepspeed, arguments), n_steps),
        mesh=mesh,
        seed=arguments.seed,
    )
    return Run(engine, corpus, n_steps, config)


def language_model(config: RunConfig) -> models.BuiltModel:
    """The model of a run file.

    Args:
        config: from `jzero.config.load_run`.

    Raises:
        ConfigError: no such model, or one that cannot read the run file's text.
    """
    model = models.build(config.model)
    if model.vocab_size is None:
        raise ConfigError(
            f"model.family {models.with_size(config.model)['family']!r} classifies images, and jzero train reads text; "
            "choose a family of language models, such as gpt."
        )
    if model.vocab_size < VOCAB_SIZE:
        raise ConfigError(f"model.vocab_size is {model.vocab_size}; byte tokens need at least {VOCAB_SIZE}.")
    if model.seq_len is not None and config.data.seq_len > model.seq_len:
        raise ConfigError(f"data.seq_len {config.data.seq_len} is more than the model.seq_len {model.seq_len}.")
    return model


def _with_rate_of(deepspeed: Config, arguments: TrainingArguments) -> TrainingArguments:
    """The arguments with the optimizer's learning rate, which the file may set where the arguments do not."""
    assert deepspeed.optimizer is not None  # the arguments are a source of one
    return arguments.model_copy(update={"learning_rate": deepspeed.optimizer.params.lr})


def describe(run: Run, console: Console) -> None:
    """Prints what will be trained, on what, and what each device holds."""
    engine, config, corpus = run.engine, run.engine.config, run.corpus
    devices = engine.mesh.devices.ravel()
    kind = "simulated CPU" if devices[0].platform == "cpu" else devices[0].device_kind
    axes = " x ".join(f"{name} {size}" for name, size in engine.mesh.shape.items())
    for name, text in {
        "mesh": f"{axes}: {len(devices)} {kind} device{'s' * (len(devices) > 1)}",
        "model": ", ".join(f"{key} {value}" for key, value in run.config.model.items()),
        "text": f"{run.config.data.source}, {corpus.train.n_windows:,} training and {corpus.validation.n_windows:,} "
        f"validation windows of {corpus.train.seq_len} bytes",
        "batch": f"{config.train_batch_size} windows = {config.train_micro_batch_size_per_gpu} a device"
        f" x {config.gradient_accumulation_steps} micro-batches x {n_data_shards(engine.mesh)} data shards",
        "run": f"{run.n_steps:,} steps in {config.precision}, ZeRO stage {engine.stage_plan.stage}",
    }.items():
        console.print(f"[bold]{name:>6}[/bold]  {escape(text)}", highlight=False)
    for note in engine.config.notes:
        console.print(f"[bold]  note[/bold]  {escape(note)}", highlight=False)
    if config.dump_state is True:
        console.print()
        console.print(config_view(config, world=n_data_shards(engine.mesh)), highlight=False)
    console.print()
    console.print(memory_table(engine))
    console.print()


def train(
    run: Run,
    *,
    console: Console | None = None,
    resume: Path | Literal["auto"] | None = None,
    weights: Path | None = None,
) -> Result:
    """Trains to the last step, or until it is interrupted.

    Args:
        run: from `prepare`.
        console: where the first process shows progress; none by default.
        resume: a checkpoint to go on from, or a folder of checkpoints, of which the newest is taken. "auto" looks into
            `output_dir`, passes damaged ones over, and starts anew if there is none; what it chose is printed.
        weights: a checkpoint from which a new run takes the parameters.

    Returns:
        How it ended; the state at that point is saved under `output_dir`.

    Raises:
        CheckpointError: if `resume` is no checkpoint of this model.
        LossScaleError: if fp16 training diverges.
        SkippedStepsError: if more steps in a row are skipped than the configuration allows.
    """
    engine, arguments = run.engine, run.config.training_arguments
    log = functools.partial(_log, console)
    with ExitStack() as closing:
        checkpoints = closing.enter_context(_checkpoints(run, log))
        start = load_start(engine, checkpoints.folder, resume, log)
        if start.step >= run.n_steps:
            reached = f"{start.checkpoint} is already at step {start.step} of {run.n_steps}"
            raise ConfigError(f"{reached}; raise training_arguments.max_steps.")
        if weights is not None and start.checkpoint is None:
            engine.load_checkpoint(weights, only="params/*", layers=LAYER_FORMS)
        writers = _writers(run, start.step, console, resumed=start.checkpoint is not None)
        loop = _Loop(run, checkpoints, start, writers, log)
        for writer in loop.writers:
            closing.callback(loop.try_to_write, writer.close)
        began = time.monotonic()
        with interrupts(engine.mesh, log) as flags:
            while loop.step < run.n_steps and not loop.stopped:
                due = loop.take_step(flags)
                if arguments.eval_steps and loop.step % arguments.eval_steps == 0:
                    loop.evaluate()
                if due or loop.step % arguments.save_steps == 0:
                    loop.save()
            loop.finish()
    seconds = time.monotonic() - began
    return Result(loop.step, loop.latest, checkpoints.path(loop.step), loop.step < run.n_steps, seconds, loop.stopped)


def _log(console: Console | None, sentence: str) -> None:
    if console is not None:
        console.print(escape(sentence), highlight=False, soft_wrap=True)


def _checkpoints(run: Run, log: Callable[[str], None]) -> Checkpoints:
    arguments, options = run.config.training_arguments, run.engine.config.jzero.checkpoint
    try:
        return Checkpoints(
            run.engine,
            arguments.output_dir,
            max_to_keep=arguments.save_total_limit,
            keep_every=options.keep_every,
            save_minutes=options.save_minutes,
            report=log,
        )
    except CheckpointError as error:
        raise ConfigError(f"training_arguments.output_dir: {error}") from None


@dataclass
class _Loop:
    """Where a run stands."""

    run: Run
    checkpoints: Checkpoints
    start: Start
    writers: list[MetricWriter]
    log: Callable[[str], None]
    stopped: int = 0
    latest: dict[str, float] = field(default_factory=dict)
    _unread: dict[str, jax.Array | int] | None = None
    _clock: float | None = None
    _seconds: float | None = None
    _evaluated_at: int = -1
    _saved_at: int = -1
    _metrics_lost: bool = False

    def __post_init__(self) -> None:
        self.step = self.start.step

    @property
    def next_batch(self) -> int:
        return self.start.next_batch + self.step - self.start.step

    def take_step(self, flags: Interrupts) -> bool:
        """Starts a step, then reads the metrics of the one before it; returns whether time asks for a save."""
        metrics = self.run.engine.train_batch(self._batch(self.run.corpus.train, self.next_batch, self._rows))
        self.read()
        self.step += 1
        self._unread = {**metrics, "step": self.step}
        self.checkpoints.tick()
        self.stopped, save = flags.poll(jax.process_index() == 0 and self.checkpoints.due())
        return save

    def read(self) -> None:
        """Reads the metrics of the last step that was started; waits until it is done."""
        if self._unread is None:
            return
        metrics = {name: float(value) for name, value in jax.device_get(self._unread).items()}
        self._unread = None
        if skipped := self.run.engine.why_skipped(metrics):
            self.log(skipped)
        metrics = {name: value for name, value in metrics.items() if not name.startswith("nonfinite_")}
        step, now = int(metrics.pop("step")), time.monotonic()
        if self._clock is not None:  # the first step, and one after an evaluation or a save, would count those too
            took = now - self._clock
            self._seconds = took if self._seconds is None else 0.9 * self._seconds + 0.1 * took
            metrics["tokens_per_second"] = self._rows * self.run.corpus.train.seq_len / self._seconds
        self._clock = now
        self._write(step, metrics)

    def evaluate(self) -> None:
        """Takes the loss over the same windows of the validation text each time."""
        self.read()
        engine, text = self.run.engine, self.run.corpus.validation
        rows = engine.config.train_micro_batch_size_per_gpu * n_data_shards(engine.mesh)
        n_batches = max(1, min(VALIDATION_WINDOWS, text.n_windows) // rows)
        losses = [engine.eval_batch(self._batch(text, i, rows))["loss"] for i in range(n_batches)]
        self._write(self.step, {"validation_loss": float(np.mean(jax.device_get(losses)))})
        self._clock, self._evaluated_at = None, self.step

    def save(self) -> None:
        """Starts to write the whole state, the data position included."""
        self.read()
        facts = {"next_batch": self.next_batch, "rows": self._rows, "model": dict(self.run.config.model)}
        self.checkpoints.save(self.step, facts)
        self._clock, self._saved_at = None, self.step

    def finish(self) -> None:
        """Reads, evaluates and saves what the last step left open."""
        self.read()
        if self._evaluated_at != self.step and not self.stopped:
            self.evaluate()
        if self._saved_at != self.step:
            self.save()
        self.checkpoints.finish()

    @property
    def _rows(self) -> int:
        return self.run.engine.config.train_batch_size

    def _batch(self, text: Windows, index: int, rows: int) -> dict[str, np.ndarray]:
        return text.batch(index, rows, part=jax.process_index(), n_parts=jax.process_count())

    def _write(self, step: int, metrics: dict[str, float]) -> None:
        self.latest |= metrics
        for writer in self.writers:
            self.try_to_write(functools.partial(writer.write, step, metrics))

    def try_to_write(self, write: Callable[[], None]) -> None:
        """Metrics may be lost where a disk is full, training may not; it is said once."""
        try:
            write()
        except OSError as error:
            if not self._metrics_lost:
                self.log(f"Metrics cannot be written: {error.strerror}; training goes on.")
            self._metrics_lost = True


def _writers(run: Run, position: int, console: Console | None, *, resumed: bool) -> list[MetricWriter]:
    """The first process's writers; the others have none."""
    if jax.process_index() != 0:
        return []
    config, arguments = run.engine.config, run.config.training_arguments
    file, resume_at = Path(arguments.output_dir, "metrics.jsonl"), position if resumed else None
    try:
        writers: list[MetricWriter] = [JsonLines(file, resume_at=resume_at)]
    except OSError as error:
        raise ConfigError(f"training_arguments.output_dir: cannot write {file}: {error.strerror}.") from None
    writers += event_writers(config, file.parent, resume_at=resume_at)
    if console is not None:
        given = "logging_steps" in arguments.model_fields_set
        every = arguments.logging_steps if given else config.steps_per_print or arguments.logging_steps
        writers.append(ConsoleView(console, total=run.n_steps, start=position, every=every))
    return writers
