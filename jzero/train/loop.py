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

from jzero.base.types import Json
from jzero.checkpoint import Checkpoints
from jzero.config import RunConfig
from jzero.engine import Engine
from jzero.sharding.mesh import n_data_shards
from jzero.train.data import Corpus
from jzero.train.data.prefetch import Prefetch
from jzero.train.monitor import MetricWriter
from jzero.train.position import Facts
from jzero.train.resume import Start, next_rate
from jzero.train.signals import Interrupts
from jzero.train.watchdog import SAVE_PATIENCE, Watchdog

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

    @property
    def facts(self) -> Facts:
        """What decides the order of the text and the schedule."""
        text, seed = self.corpus.train, self.config.training_arguments.seed
        rows = self.engine.config.train_batch_size
        return Facts(rows, text.seq_len, seed, self.corpus.fingerprint, self.n_steps, text.n_windows)


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
    _clock: float | None = None
    _seconds: float | None = None
    _evaluated_at: int = -1
    _saved_at: int = -1
    _metrics_lost: bool = False

    def __post_init__(self) -> None:
        self.step = self.start.step
        self._batches: Iterator[dict[str, np.ndarray]] = iter(())

    @contextmanager
    def prefetching(self) -> Iterator[None]:
        """Within it, a thread makes the next batches while the devices work."""
        text, first = self.run.corpus.train, self.next_batch
        part = {"part": jax.process_index(), "n_parts": jax.process_count()}
        make = lambda number: text.batch(first + number, self._rows, **part)
        with Prefetch(make, self.run.n_steps - self.step) as self._batches:
            yield

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
        step, now = int(metrics.pop("step")), time.monotonic()
        if self._clock is not None:  # the first step, and one after an evaluation or a save, would count those too
            took = now - self._clock
            self._seconds = took if self._seconds is None else 0.9 * self._seconds + 0.1 * took
            metrics["tokens_per_second"] = self._rows * self.run.corpus.train.seq_len / self._seconds
        self._clock = now
        self.watchdog.begin(self._seconds or 0.0)
        self.watchdog.enter("between two steps")
        self._write(step, metrics)

    def evaluate(self, flags: Interrupts) -> bool:
        """Takes the loss over the same windows of the validation text each time, unless it is asked to stop.

        Returns:
            Whether time asks for a save.
        """
        self.read()
        engine, text = self.run.engine, self.run.corpus.validation
        rows = engine.config.train_micro_batch_size_per_gpu * n_data_shards(engine.mesh)
        n_batches = max(1, min(VALIDATION_WINDOWS, text.n_windows) // rows)
        losses, weights, save = [], [], False
        self._clock = None
        self.watchdog.unlimited()  # the first one is compiled
        for i in range(n_batches):
            if i or self._evaluated_at >= 0:
                self.watchdog.enter("evaluating")
            jax.block_until_ready(losses[-1:])  # while nothing waits for the next one
            batch = text.batch(i, rows)
            weights.append(n_targets(batch))
            losses.append(engine.eval_batch(self._own(batch, rows))["loss"])
            self.stopped, due = flags.poll(False)
            save |= due
            if self.stopped:
                return save
        self._write(self.step, {"validation_loss": _mean(jax.device_get(losses), weights)})
        self._evaluated_at = self.step
        return save

    def save(self) -> None:
        """Starts to write the whole state, the data position included."""
        self.read()
        self.watchdog.enter("saving", patience=SAVE_PATIENCE)
        facts: dict[str, Json] = {"run": self.start.run, "next_batch": self.next_batch, **self.run.facts._asdict()}
        facts |= {"learning_rate": next_rate(self.run.engine), "model": dict(self.run.config.model)}
        self.checkpoints.save(self.step, facts)
        self._clock, self._saved_at = None, self.step

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

    def _own(self, batch: dict[str, np.ndarray], rows: int) -> dict[str, np.ndarray]:
        """This process's part of a batch that it has whole."""
        own = rows // jax.process_count()
        return {name: x[jax.process_index() * own :][:own] for name, x in batch.items()}

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


def n_targets(batch: dict[str, np.ndarray]) -> int:
    """How many tokens of a batch are predicted and count, as `next_token_loss` counts them.

    Example:
        >>> n_targets({"tokens": np.zeros((2, 9))})
        16
        >>> segment_ids, loss_mask = np.array([[1, 1, 2, 2]]), np.ones((1, 4))
        >>> n_targets({"tokens": np.zeros((1, 4)), "segment_ids": segment_ids, "loss_mask": loss_mask})
        2
    """
    if "loss_mask" not in batch:
        return batch["tokens"][:, 1:].size
    segments, counts = batch["segment_ids"], batch["loss_mask"][:, 1:]
    return int((counts * (segments[:, 1:] == segments[:, :-1]) * (segments[:, 1:] != 0)).sum())


def _mean(losses: Sequence[float], weights: Sequence[int]) -> float:
    """The mean over all tokens that count; a batch without any has no say."""
    kept = [number for number, weight in enumerate(weights) if weight]
    if not kept:
        return math.nan
    return float(np.average([losses[number] for number in kept], weights=[weights[number] for number in kept]))
