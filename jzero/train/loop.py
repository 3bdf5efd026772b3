"""A run under way: step after step, and what is read, written and saved between them.

The metrics of a step are read while the next one already runs, so the devices never wait for the host.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import jax
import numpy as np

from jzero.base.types import Batch, Json
from jzero.checkpoint import Checkpoints
from jzero.config import RunConfig
from jzero.engine import Engine
from jzero.sharding.mesh import n_data_shards
from jzero.train.data import Corpus
from jzero.train.data.prefetch import Prefetch
from jzero.train.feed import CorpusFeed, Feed
from jzero.train.monitor import MetricWriter
from jzero.train.pace import Pace
from jzero.train.patience import Patience
from jzero.train.position import Facts
from jzero.train.resume import Start, next_rate
from jzero.train.signals import Interrupts
from jzero.train.watchdog import SAVE_PATIENCE, Watchdog


@dataclass(frozen=True)
class Run:
    """A run that is ready to start.

    Attributes:
        engine: holds the model.
        corpus: the text, or another feed of batches.
        n_steps: optimizer steps of the whole run.
        config: the run file.
    """

    engine: Engine
    corpus: Corpus | Feed
    n_steps: int
    config: RunConfig

    @functools.cached_property
    def feed(self) -> Feed:
        """Its batches."""
        return CorpusFeed(self.corpus) if isinstance(self.corpus, Corpus) else self.corpus

    @property
    def facts(self) -> Facts:
        """What decides the order of the text and the schedule."""
        seed, rows = self.config.training_arguments.seed, self.engine.config.train_batch_size
        return self.feed.facts(rows, seed, self.n_steps)


@dataclass
class Loop:
    """Where a run stands."""

    run: Run
    checkpoints: Checkpoints
    start: Start
    writers: list[MetricWriter]
    log: Callable[[str], None]
    watchdog: Watchdog
    stopped: int = 0
    latest: dict[str, float] = field(default_factory=dict)
    _unread: dict[str, jax.Array | float] | None = None
    _evaluated_at: int = -1
    _saved_at: int = -1
    _metrics_lost: bool = False

    def __post_init__(self) -> None:
        self.step = self.start.step
        self._batches: Iterator[Batch] = iter(())
        arguments = self.run.config.training_arguments
        limits = arguments.early_stopping_patience, arguments.early_stopping_threshold
        seq_len = self.run.feed.seq_len
        self.pace = Pace(self.run.engine, self._rows * (seq_len or 1), "tokens" if seq_len else "samples")
        self.patience = Patience.of(self.start.saved.get("early_stopping"), *limits)

    @contextmanager
    def prefetching(self) -> Iterator[None]:
        """Within it, a thread makes the next batches while the devices work."""
        first = self.next_batch
        make = lambda number: self.run.feed.batch(first + number, self._rows)
        with Prefetch(make, self.run.n_steps - self.step) as self._batches:
            yield

    @property
    def enough(self) -> bool:
        """Whether the validation loss has not fallen for too long."""
        return self.patience.is_over

    @property
    def next_batch(self) -> int:
        return self.start.next_batch + self.step - self.start.step

    def take_step(self, flags: Interrupts) -> bool:
        """Starts a step, then reads the metrics of the one before it; returns whether time asks for a save."""
        self.watchdog.step = self.step + 1
        self.watchdog.enter("waiting for a batch")
        began = time.monotonic()
        batch = next(self._batches)
        waited = time.monotonic() - began
        self.watchdog.enter("starting the step or waiting for the one before")
        metrics = self.run.engine.train_batch(batch)
        self.read()
        self.step += 1
        self._unread = {**metrics, "step": self.step, "data_seconds": waited}
        self.checkpoints.tick()
        self.stopped, save = flags.poll(jax.process_index() == 0 and self.checkpoints.due())
        flags.begun()
        return save

    def read(self) -> None:
        """Reads the metrics of the last step that was started; waits until it is done."""
        if self._unread is None:
            return
        self.watchdog.enter("waiting for the devices")
        metrics = {name: float(value) for name, value in jax.device_get(self._unread).items()}
        self._unread = None
        if skipped := self.run.engine.why_skipped(metrics):
            self.log(skipped)
        metrics = {name: value for name, value in metrics.items() if not name.startswith("nonfinite_")}
        step = int(metrics.pop("step"))
        metrics |= self.pace.step_ended()
        self.watchdog.begin(self.pace.seconds)
        self.watchdog.enter("between two steps")
        self._write(step, metrics)

    def evaluate(self, flags: Interrupts) -> bool:
        """Takes the loss over the same windows of the validation text each time, unless it is asked to stop.

        Returns:
            Whether time asks for a save.
        """
        self.read()
        engine = self.run.engine
        rows = engine.config.train_micro_batch_size_per_gpu * n_data_shards(engine.mesh)
        losses, weights, save = [], [], False
        self.pace.restart()
        self.watchdog.unlimited()  # the first one is compiled
        for batch, weight in self.run.feed.validation(rows):
            if losses or self._evaluated_at >= 0:
                self.watchdog.enter("evaluating")
            jax.block_until_ready(losses[-1:])  # while nothing waits for the next one
            losses.append(engine.eval_batch(batch)["loss"])
            weights.append(weight)
            self.stopped, due = flags.poll(False)
            save |= due
            if self.stopped:
                return save
        if losses:
            loss = _mean(jax.device_get(losses), weights)
            self._write(self.step, {"validation_loss": loss})
            if self.patience.heard(loss):
                self.log(
                    f"The validation loss has not fallen for {self.patience.waited} evaluations: the run ends here."
                )
        self._evaluated_at = self.step
        return save

    def save(self) -> None:
        """Starts to write the whole state, the data position included."""
        self.read()
        self.watchdog.enter("saving", patience=SAVE_PATIENCE)
        facts: dict[str, Json] = {"run": self.start.run, "next_batch": self.next_batch, **self.run.facts._asdict()}
        facts |= {"learning_rate": next_rate(self.run.engine), "model": dict(self.run.config.model)}
        facts |= self.run.feed.position(self.next_batch)
        if self.patience.limit is not None and math.isfinite(self.patience.best):
            facts["early_stopping"] = {"best": self.patience.best, "waited": self.patience.waited}
        self.checkpoints.save(self.step, facts)
        self.pace.restart()
        self._saved_at = self.step

    def finish(self, flags: Interrupts) -> None:
        """Reads, evaluates and saves what the last step left open."""
        self.read()
        if self._evaluated_at != self.step and not self.stopped:
            self.evaluate(flags)
        if self._saved_at != self.step:
            self.save()
        self.watchdog.enter("saving", patience=SAVE_PATIENCE)
        self.checkpoints.finish()

    @property
    def _rows(self) -> int:
        return self.run.engine.config.train_batch_size

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


def _mean(losses: Sequence[float], weights: Sequence[float]) -> float:
    """The mean over all tokens that count; a batch without any has no say."""
    kept = [number for number, weight in enumerate(weights) if weight]
    if not kept:
        return math.nan
    return float(np.average([losses[number] for number in kept], weights=[weights[number] for number in kept]))
