"""`jzero.fit`: trains an engine on any iterator of batches, with checkpoints, metrics and signals as `jzero train`.

The iterator's state goes into the checkpoints, if it has one that can be saved: `get_state` and `set_state`, as grain's
iterators have them, or `state_dict` and `load_state_dict`. Any other iterator is read again up to where it was.
"""

import base64
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import jax
import numpy as np
from jax.experimental import multihost_utils
from rich.console import Console

from jzero.base.types import Batch, Json
from jzero.config import RunConfig, TrainingArguments
from jzero.config.schema.building import build
from jzero.config.schema.section import Trace
from jzero.engine import Engine
from jzero.errors import CheckpointError, ConfigError
from jzero.train.feed import Log, Weighted, n_targets
from jzero.train.loop import Run
from jzero.train.position import Facts
from jzero.train.trainer import Begin, Result, train

HERE = frozenset(
    {
        *("output_dir", "max_steps", "num_train_epochs", "seed", "save_total_limit", "resume_from_checkpoint"),
        *("logging_strategy", "logging_steps", "logging_first_step", "logging_dir", "report_to"),
        *("eval_strategy", "eval_steps", "save_strategy", "save_steps"),
        *("early_stopping_patience", "early_stopping_threshold", "metric_for_best_model"),
    }
)
"""The arguments that `fit` honours; the others decide what an engine is."""

STRATEGIES = ("logging_strategy", "eval_strategy", "save_strategy")

_log = logging.getLogger("jzero")

_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class Options(TypedDict, total=False):
    """How `fit` begins and what it shows.

    Attributes:
        resume: a checkpoint to go on from, a folder of them, or "auto" for the newest in `output_dir`, if any.
        overwrite: remove checkpoints that another run left in `output_dir`.
        console: where the first process shows progress; none by default.
    """

    resume: str | Path | Literal["auto"] | None
    overwrite: bool
    console: Console | None


def fit(
    engine: Engine,
    batches: Iterable[Batch],
    arguments: TrainingArguments | Mapping[str, Json],
    *,
    validation: Iterable[Batch] | None = None,
    **options: Unpack[Options],
) -> Result:
    """Trains an engine on batches as they come, and saves where it is in them.

    Args:
        engine: from `jzero.initialize`.
        batches: of this process, as `Engine.train_batch` takes them: a `grain` dataset or loader, any other iterable,
            which is gone through again and again, or an iterator, which must last for the run.
        arguments: Hugging Face's names: `output_dir`, `max_steps` (or `num_train_epochs`, of an iterable that has a
            length), `seed`, and those that say when to log, evaluate, save and stop. Others are refused, as the engine
            has been made without them.
        validation: batches to evaluate on, gone through anew each time.
        **options: how it begins and what it shows, see `Options`.

    Returns:
        How the run ended; its last checkpoint holds the state at that point.

    Raises:
        ConfigError: arguments that do not fit, or batches that end before the run does.
        CheckpointError: `resume` is no checkpoint of this model, or `output_dir` holds those of another run.

    Example:
        >>> import jzero, tempfile
        >>> engine = jzero.initialize(
        ...     model=lambda rngs: __import__("flax").nnx.Linear(2, 1, rngs=rngs),
        ...     loss_fn=lambda model, batch: (model(batch["x"]) ** 2).mean(),
        ...     config={"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
        ...     sample_batch={"x": np.zeros((8, 2), np.float32)},
        ... )
        >>> data = [{"x": np.full((8, 2), i, np.float32)} for i in range(4)]
        >>> jzero.fit(engine, data, {"output_dir": tempfile.mkdtemp(), "num_train_epochs": 2}).step
        8
    """
    if not isinstance(arguments, TrainingArguments):
        trace = Trace()
        arguments = build(TrainingArguments, arguments, file="arguments", trace=trace)
        for note in trace.notes:
            _log.info("arguments: %s", note)
    if others := sorted(arguments.model_fields_set - {*HERE, "lr_scheduler_kwargs"}):
        raise ConfigError(
            f"arguments: {', '.join(others)} would have no effect, as the engine is made: give them to "
            "jzero.initialize, in its DeepSpeed configuration."
        )
    feed, per_epoch = GivenFeed(batches, validation), _length(batches)
    n_steps = _n_steps(per_epoch, arguments)
    arguments = arguments.with_steps(per_epoch or n_steps)
    config = RunConfig.model_construct(model={}, training_arguments=arguments, deepspeed=engine.config)
    run = Run(engine, feed, n_steps, config)
    named = arguments.resume_from_checkpoint
    resume = options.get("resume") or (arguments.output_dir if named is True else named or None)
    start = None if resume is None else "auto" if resume == "auto" else Path(resume)
    begin = Begin(resume=start, overwrite=options.get("overwrite", False))
    return train(run, console=options.get("console"), **begin)


def _length(batches: Iterable[Batch]) -> int | None:
    """How many batches an epoch has, if the iterable says."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return None


def _n_steps(per_epoch: int | None, arguments: TrainingArguments) -> int:
    by_epochs = [name for name in STRATEGIES if getattr(arguments, name) == "epoch"]
    if per_epoch is None and (by_epochs or arguments.max_steps < 1):
        missing = f'{by_epochs[0]} is "epoch"' if by_epochs else "max_steps is missing"
        raise ConfigError(
            f"arguments: {missing}, and nobody knows how many batches an epoch of this iterable has; say it in steps."
        )
    if per_epoch is None or arguments.max_steps > 0:
        return arguments.max_steps
    return max(1, math.ceil(arguments.num_train_epochs * per_epoch))


class GivenFeed:
    """The batches of an iterable, which come in their own order.

    Args:
        batches: to train on.
        validation: to evaluate on.
    """

    unit, seq_len = "row", 0

    def __init__(self, batches: Iterable[Batch], validation: Iterable[Batch] | None = None):
        self._source, self._validation = batches, validation
        self._iterator = iter(batches)
        self._again = self._iterator is not batches
        self._next = self._in_epoch = 0
        self._states: dict[int, str | None] = {0: None}

    def batch(self, index: int, rows: int) -> Batch:
        """The next one; batches are asked for in order."""
        assert index == self._next, "batches are asked for in order"
        batch = self._pull()
        self._next += 1
        self._states[self._next] = _state(self._holder())
        return batch

    def validation(self, rows: int) -> Iterator[Weighted]:
        """See `jzero.train.feed.Feed`."""
        for batch in self._validation or ():
            weight = n_targets(batch) if _has_tokens(batch) else jax.tree.leaves(batch)[0].shape[0]
            yield Weighted(batch, float(np.sum(multihost_utils.process_allgather(np.float32(weight)))))

    def facts(self, rows: int, seed: int, n_steps: int) -> Facts:
        """See `jzero.train.feed.Feed`."""
        return Facts(rows, 1, seed, "given", n_steps)

    def position(self, next_batch: int) -> dict[str, Json]:
        """The iterator's state at that batch, of each process; nothing where one of them has none."""
        self._states = {index: state for index, state in list(self._states.items()) if index >= next_batch}
        states = _of_all_processes(self._states.get(next_batch) or "")
        return {"iterator": states} if all(states) else {}

    def go_on(self, saved: Mapping[str, Json], next_batch: int, log: Log) -> None:
        """Goes to where a checkpoint says, by the iterator's own state or by reading."""
        if not next_batch:
            return
        states = saved.get("iterator")
        if isinstance(states, list) and len(states) == jax.process_count() and _methods(self._holder()):
            _restore(self._holder(), states[jax.process_index()])
        else:
            why = "has no state that is saved" if not isinstance(states, list) else "was saved for other processes"
            log(f"The iterator of batches {why}: {next_batch} batches are read again and left out.")
            for _ in range(next_batch):
                self._pull()
        self._next, self._states = next_batch, {next_batch: _state(self._holder())}

    def _holder(self) -> object:
        """What has a state: the iterator, or the iterable itself."""
        return self._iterator if _methods(self._iterator) else self._source

    def _pull(self) -> Batch:
        try:
            batch = next(self._iterator)
        except StopIteration:
            if not self._again or not self._in_epoch:
                raise ConfigError(
                    f"the iterator of batches ended after {self._next} batches, before the run does (max_steps); give "
                    "an iterable that can be gone through again, or fewer steps."
                ) from None
            self._iterator, self._in_epoch = iter(self._source), 0
            return self._pull()
        self._in_epoch += 1
        return batch


def _has_tokens(batch: Batch) -> bool:
    return isinstance(batch, Mapping) and np.ndim(batch.get("tokens", 0)) == 2


def _methods(holder: object) -> tuple[str, str] | None:
    return next((pair for pair in _METHODS if all(callable(getattr(holder, name, None)) for name in pair)), None)


def _state(holder: object) -> str | None:
    """The state as text; None if there is none, or none that JSON can hold."""
    if (methods := _methods(holder)) is None:
        return None
    state = getattr(holder, methods[0])()
    if isinstance(state, bytes):
        return json.dumps({"bytes": base64.b64encode(state).decode()})
    try:
        return json.dumps({"json": state})
    except (TypeError, ValueError):
        return None


def _restore(holder: object, text: str) -> None:
    try:
        saved = json.loads(text)
        state = base64.b64decode(saved["bytes"]) if "bytes" in saved else saved["json"]
        methods = _methods(holder)
        assert methods is not None, "it was looked for"
        getattr(holder, methods[1])(state)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"the checkpoint's state of the iterator of batches is none of this one's: {type(error).__name__}: {error}."
        ) from None


def _of_all_processes(text: str) -> list[str]:
    """What each process says; every process must call it."""
    if jax.process_count() == 1:
        return [text]
    encoded = np.frombuffer(text.encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(encoded)))
    padded = np.zeros(int(np.max(lengths)), np.uint8)
    padded[: len(encoded)] = encoded
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [row[:length].tobytes().decode() for row, length in zip(rows, np.ravel(lengths), strict=True)]
