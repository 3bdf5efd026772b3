"""The training loop behind `jzero train`: a run file becomes an engine, and the engine is driven to the last step.

Every process runs the same steps on its own rows of each batch; only the first one prints and writes metrics. The loop
reads each step's metrics while the next step already runs, so the devices never wait for the host.
"""

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console
from rich.markup import escape

from jzero import models
from jzero.config import RunConfig
from jzero.data import VOCAB_SIZE, Corpus, load_corpus
from jzero.engine import Engine, initialize
from jzero.errors import ConfigError
from jzero.holdings import holdings_table
from jzero.mesh import make_mesh, n_data_shards
from jzero.monitor import ConsoleView, JsonLines, MetricWriter
from jzero.schedules import hf_schedule
from jzero.state import replicated

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
    """

    step: int
    metrics: Mapping[str, float]
    checkpoint: Path
    interrupted: bool
    seconds: float


def prepare(config: RunConfig, *, base: Path = Path(), mesh: Mesh | None = None) -> Run:
    """Builds everything that a run file names.

    Args:
        config: from `jzero.config.load_run`.
        base: the folder of the run file, which globs are relative to.
        mesh: all devices on the `shard` axis by default.

    Raises:
        JzeroError: whatever does not fit, in one sentence.
    """
    arguments = config.training_arguments
    model = models.build(config.model)
    if model.vocab_size is None:
        raise ConfigError(
            f"model.family {config.model['family']!r} classifies images, and jzero train reads text; "
            "choose a family of language models, such as gpt."
        )
    if model.vocab_size < VOCAB_SIZE:
        raise ConfigError(f"model.vocab_size is {model.vocab_size}; byte tokens need at least {VOCAB_SIZE}.")
    if model.seq_len is not None and config.data.seq_len > model.seq_len:
        raise ConfigError(f"data.seq_len {config.data.seq_len} is more than the model.seq_len {model.seq_len}.")
    corpus = load_corpus(config.data, base=base, seed=arguments.seed)
    mesh = make_mesh() if mesh is None else mesh
    facts: dict[str, Any] = {
        "world": n_data_shards(mesh),
        "training_arguments": arguments,
        "hidden_size": model.hidden_size,
    }
    # The schedule may need the number of steps, and that needs the batch size: resolve without the schedule first.
    rows = config.deepspeed.model_copy(update={"scheduler": None}).resolve(**facts).train_batch_size
    n_steps = arguments.max_steps
    if n_steps < 1:
        n_steps = math.ceil(arguments.num_train_epochs * max(1, corpus.train.n_windows // rows))
    deepspeed = config.deepspeed.resolve(**facts, num_training_steps=n_steps)
    has_schedule = deepspeed.scheduler is not None and deepspeed.scheduler.type is not None
    engine = initialize(
        model=model.factory,
        loss_fn=model.loss_fn,
        config=deepspeed,
        sample_batch=corpus.train.batch(0, rows),
        schedule=None if has_schedule else hf_schedule(arguments, n_steps),
        mesh=mesh,
        seed=arguments.seed,
    )
    return Run(engine, corpus, n_steps, config)


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
    for note in run.config.deepspeed.notes:
        console.print(f"[bold]  note[/bold]  {escape(note)}", highlight=False)
    console.print()
    console.print(holdings_table(engine))
    console.print()


def train(run: Run, *, console: Console | None = None, resume: Path | None = None) -> Result:
    """Trains to the last step, or until it is interrupted.

    Args:
        run: from `prepare`.
        console: where the first process shows progress; none by default.
        resume: a checkpoint to go on from.

    Returns:
        How it ended; the state at that point is saved under `output_dir`.

    Raises:
        CheckpointError: if `resume` is no checkpoint of this model.
        LossScaleError: if fp16 training diverges.
    """
    engine, arguments = run.engine, run.config.training_arguments
    position = engine.load_checkpoint(resume)["next_batch"] if resume is not None else 0
    if position >= run.n_steps:
        raise ConfigError(
            f"{resume} is already at step {position} of {run.n_steps}; raise training_arguments.max_steps."
        )
    loop = _Loop(run, position, _writers(run, position, console, resumed=resume is not None))
    start = time.monotonic()
    try:
        with _interrupts(engine.mesh, console) as interrupts:
            while loop.step < run.n_steps and not loop.stopped:
                loop.take_step(interrupts)
                if arguments.eval_steps and loop.step % arguments.eval_steps == 0:
                    loop.evaluate()
                if loop.step % arguments.save_steps == 0:
                    loop.save()
            loop.finish()
    finally:
        for writer in loop.writers:
            writer.close()
    return Result(loop.step, loop.latest, loop.checkpoint, loop.step < run.n_steps, time.monotonic() - start)


@dataclass
class _Loop:
    """Where a run stands."""

    run: Run
    step: int
    writers: list[MetricWriter]
    stopped: bool = False
    latest: dict[str, float] = field(default_factory=dict)
    _unread: dict[str, Any] | None = None
    _clock: float | None = None
    _seconds: float | None = None
    _evaluated_at: int = -1
    _saved_at: int = -1

    @property
    def checkpoint(self) -> Path:
        return Path(self.run.config.training_arguments.output_dir, f"checkpoint-{self.step}")

    def take_step(self, interrupts: "_Interrupts") -> None:
        """Starts a step, then reads the metrics of the one before it."""
        metrics = self.run.engine.train_batch(self._batch(self.run.corpus.train, self.step, self._rows))
        self.read()
        self.step += 1
        self._unread = {**metrics, "step": self.step}
        self.stopped = interrupts.poll()

    def read(self) -> None:
        """Reads the metrics of the last step that was started; waits until it is done."""
        if self._unread is None:
            return
        metrics = {name: float(value) for name, value in jax.device_get(self._unread).items()}
        self._unread = None
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
        """Writes the whole state, the data position included."""
        self.read()
        self.run.engine.save_checkpoint(self.checkpoint, {"next_batch": self.step})
        self._clock, self._saved_at = None, self.step

    def finish(self) -> None:
        """Reads, evaluates and saves what the last step left open."""
        self.read()
        if self._evaluated_at != self.step and not self.stopped:
            self.evaluate()
        if self._saved_at != self.step:
            self.save()

    @property
    def _rows(self) -> int:
        return self.run.engine.config.train_batch_size

    def _batch(self, text: Any, index: int, rows: int) -> dict[str, np.ndarray]:
        return text.batch(index, rows, part=jax.process_index(), n_parts=jax.process_count())

    def _write(self, step: int, metrics: dict[str, float]) -> None:
        self.latest |= metrics
        for writer in self.writers:
            writer.write(step, metrics)


def _writers(run: Run, position: int, console: Console | None, *, resumed: bool) -> list[MetricWriter]:
    """The first process's writers; the others have none."""
    if jax.process_index() != 0:
        return []
    arguments = run.config.training_arguments
    file = Path(arguments.output_dir, "metrics.jsonl")
    try:
        writers: list[MetricWriter] = [JsonLines(file, resume_at=position if resumed else None)]
    except OSError as error:
        raise ConfigError(f"training_arguments.output_dir: cannot write {file}: {error.strerror}.") from None
    if console is not None:
        writers.append(ConsoleView(console, total=run.n_steps, start=position, every=arguments.logging_steps))
    return writers


class _Interrupts:
    """Ctrl-C as a flag that all processes read alike.

    Processes receive the signal at different steps, but must leave the loop at the same one. So each step brings the
    flags of all processes together on the devices, and the answer is read one step later, when it is there without
    waiting.
    """

    def __init__(self, mesh: Mesh):
        self.asked = False
        self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._any = jax.jit(jnp.max, out_shardings=replicated(mesh))
        self._unread: jax.Array | None = None

    def poll(self) -> bool:
        """Whether to stop; all processes must call it after each step."""
        if jax.process_count() == 1:
            return self.asked
        before = self._unread
        own = np.full(len(self._sharding.addressable_devices), self.asked, np.int32)
        self._unread = self._any(jax.make_array_from_process_local_data(self._sharding, own))
        return before is not None and bool(before)


@contextmanager
def _interrupts(mesh: Mesh, console: Console | None) -> Iterator[_Interrupts]:
    """Within it, a first Ctrl-C asks the loop to stop after the current step; a second one ends the program at once."""
    interrupts = _Interrupts(mesh)
    if threading.current_thread() is not threading.main_thread():  # signals belong to the main thread
        yield interrupts
        return

    def ask(signum: int, frame: Any) -> None:
        interrupts.asked = True
        signal.signal(signal.SIGINT, before)
        if console is not None:
            console.print("Stopping after this step and saving; press Ctrl-C again to quit without saving.")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
