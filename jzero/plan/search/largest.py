"""The largest micro-batch and the largest model that fit, for every setting: by the closed form, then by compiles.

Both are searches along one size in which a step's memory grows: what two sizes take says where the next one to try is.
"""

import bisect
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Unpack

from jzero import models
from jzero.base.types import Json
from jzero.config import Config, TrainingArguments
from jzero.config.config import Source
from jzero.errors import ConfigError
from jzero.models.scaling import scaled
from jzero.plan.compiled.topology import can_compile_for
from jzero.plan.hardware.cluster import Cluster
from jzero.plan.search.planner import Compile
from jzero.plan.search.recommendation import cost
from jzero.plan.search.row import Row
from jzero.plan.search.setting import Setting, settings
from jzero.plan.search.workload import ClusterOptions, RunOptions, Workload, workload_of

PRECISION = 64
"""A search ends where the next size, or one larger by one part of so many, does not fit."""

MAX_COMPILES = 4
"""How often one setting is compiled: each time at the size that what was compiled before speaks for."""

MAX_BATCH, MAX_STEP = 2**20, 2**10
"""Where searches end: samples of a micro-batch, and a model's width in steps of `jzero.models.scaling.scaled`."""


@dataclass(frozen=True)
class Largest:
    """What fits in one setting.

    Attributes:
        setting: which one; its micro-batch is the largest, or the one given.
        row: its memory; None where not even one sample fits, or the smallest model.
        model: the `model` part of the largest model; None where the batch was searched for.
    """

    setting: Setting
    row: Row | None
    model: Mapping[str, Json] | None = None

    def to_dict(self) -> dict[str, Json]:
        """All of it, ready for JSON."""
        found = self.row.to_dict() if self.row else {**vars(self.setting), "fits": False}
        return {**found, "n_params": self.row and self.row.n_params, "model": self.model and dict(self.model)}


def max_batch(
    *,
    stages: Iterable[int] = (0, 1, 2, 3),
    compiled: Compile | None = None,
    report: Callable[[str], None] = lambda _: None,
    **run: Unpack[RunOptions],
) -> tuple[Largest, ...]:
    """The largest micro-batch that fits, for each stage and what it can offload; accumulation stays as it is.

    Args:
        stages: which stages to look at.
        compiled: which settings to confirm by compiles: "nothing", "all", or "recommended": the fastest per sample.
            The last by default, where the plugin is installed.
        report: is told what is being worked out.
        **run: what is planned and on what cluster, see `jzero.plan.RunOptions`.

    Returns:
        One entry for each setting.

    Raises:
        JzeroError: whatever does not fit together, in one sentence.

    Example:
        >>> from flax import nnx
        >>> import jax, jax.numpy as jnp
        >>> found = max_batch(
        ...     model=lambda rngs: nnx.Linear(512, 512, use_bias=False, rngs=rngs),
        ...     loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
        ...     config={"train_batch_size": 64, "optimizer": {"type": "AdamW"}},
        ...     sample_batch=jax.ShapeDtypeStruct((64, 512), jnp.float32),
        ...     stages=[3],
        ...     compiled="nothing",
        ... )
        >>> found[0].row.fits, found[0].setting.micro_batch > 10_000_000
        (True, False)
    """
    what = workload_of(**run)
    if what.config.elasticity and what.config.elasticity.enabled:
        raise ConfigError("`elasticity` decides the micro-batch; remove it to look for the largest.")

    def search(setting: Setting) -> _Search:
        def at(size: int) -> _Sized:
            larger = replace(setting, micro_batch=size)
            return _Sized(what.on(what.cluster.n_gpus, larger), larger)

        return _Search(setting, at, MAX_BATCH, report=report)

    found = _find([search(s) for s in settings(what.as_given(), stages)], what.cluster, compiled, cost)
    return tuple(Largest(search.best.setting if search.best else search.setting, search.best) for search in found)


def largest_model(
    *,
    model: Mapping[str, Json],
    config: Source,
    seq_len: int | None = None,
    n_gpus: int = 8,
    training_arguments: TrainingArguments | None = None,
    stages: Iterable[int] = (0, 1, 2, 3),
    compiled: Compile | None = None,
    report: Callable[[str], None] = lambda _: None,
    **cluster: Unpack[ClusterOptions],
) -> tuple[Largest, ...]:
    """The largest model of a family that fits, for each stage and what it can offload, at the batch size given.

    Width and depth grow together by the table of the GPT-3 paper; heads keep their width.

    Args:
        model: a run file's `model` part of a transformer, such as `{"size": "gpt2"}`.
        config: a DeepSpeed configuration, see `jzero.plan.plan`.
        seq_len: tokens of a sequence; the model's `seq_len` by default.
        n_gpus: the number of GPUs.
        training_arguments: what `"auto"` is filled from.
        stages: see `max_batch`.
        compiled: see `max_batch`; "recommended" is the largest of all.
        report: see `max_batch`.
        **cluster: `gpu`, `gpus_per_node`, `network` and `host_memory`, as `jzero.plan.plan` takes them.

    Returns:
        One entry for each setting.

    Raises:
        JzeroError: whatever does not fit together, in one sentence.

    Example:
        >>> config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"}}
        >>> (found,) = largest_model(model={"size": "gpt2"}, seq_len=64, config=config, stages=[0], compiled="nothing")
        >>> found.model["d_model"] // found.model["n_head"], found.row.fits
        (64, True)
    """
    smallest = models.build(scaled(model, 1))
    known = {"training_arguments": training_arguments, "hidden_size": smallest.hidden_size}
    rows = Config.load(config).resolve(world=n_gpus, **known, partly=True).train_batch_size
    what = workload_of(
        model=smallest.factory,
        loss_fn=smallest.loss_fn,
        config=config,
        sample_batch=smallest.batch(rows, seq_len or smallest.seq_len or 0),
        n_gpus=n_gpus,
        **known,
        **cluster,
    )
    searches = [_width_search(what, model, setting, report) for setting in settings(what.as_given(), stages)]
    found = _find(searches, what.cluster, compiled, lambda row: (-row.n_params, *cost(row)))
    return tuple(Largest(s.setting, s.best, scaled(model, s.size) if s.best else None) for s in found)


def _width_search(
    what: Workload, model: Mapping[str, Json], setting: Setting, report: Callable[[str], None]
) -> "_Search":
    """The search for the largest model of a family in one setting."""

    def at(size: int) -> _Sized:
        built = models.build(scaled(model, size))
        training = replace(what.training, model=built.factory, hidden_size=built.hidden_size)
        return _Sized(replace(what, training=training), setting)

    return _Search(setting, at, MAX_STEP, lambda size: models.build(scaled(model, size)).n_params, report)


class _Sized(NamedTuple):
    """A run of some size, and the setting to ask it for."""

    run: Workload
    setting: Setting


@dataclass
class _Search:
    """The search in one setting.

    Attributes:
        setting: which one.
        at: the run of a size, and its setting.
        high: the largest size to look at.
        extent: what the memory of a size grows with, in about a straight line.
        report: is told what is being worked out.
        size: the largest that fits.
        best: its row; None if none fits.
    """

    setting: Setting
    at: Callable[[int], _Sized]
    high: int
    extent: Callable[[int], float] = float
    report: Callable[[str], None] = lambda _: None
    size: int = 0
    best: Row | None = None
    _rows: dict[int, Row] = field(default_factory=dict)

    def estimate(self) -> None:
        """Finds the largest by the closed form."""
        self._take(largest_fit(self._peak, self._row(1).cluster.usable, self.high, self.extent))

    def confirm(self) -> None:
        """Compiles it; what is wrong with the closed form there says which size to compile next, up or down."""
        confirmed: tuple[int, Row | None] = 0, None
        size, above = self.size, self.high + 1
        for _ in range(MAX_COMPILES):
            run, setting = self.at(size)
            self.report(f"{setting}, compiling")
            row = run.compile(self._row(size), batch=True)
            if row.fits:
                confirmed = size, row
            else:
                above = size
            usable = int(row.cluster.usable * row.closed_form_peak / row.peak)
            size = min(largest_fit(self._peak, usable, self.high, self.extent), above - 1)
            if size <= confirmed[0] + confirmed[0] // PRECISION:
                break
        self.size, self.best = confirmed

    def _take(self, size: int) -> None:
        self.size, self.best = size, self._rows.get(size)

    def _peak(self, size: int) -> int:
        """The peak; or what it would be if a GPU were as full as its host, where that is fuller."""
        row = self._row(size)
        limit, taken = row.cluster.host_memory, row.host_per_node
        return max(row.closed_form_peak, 0 if limit is None else math.ceil(taken * row.cluster.usable / max(limit, 1)))

    def _row(self, size: int) -> Row:
        if size not in self._rows:
            run, setting = self.at(size)
            self.report(f"{setting}, closed form")
            self._rows[size] = run.estimate(setting, batch=True)
        return self._rows[size]


def _find(
    searches: list[_Search], cluster: Cluster, compiled: Compile | None, rank: Callable[[Row], tuple[float, ...]]
) -> list[_Search]:
    """Runs the searches that the configuration allows, and confirms them all, or those that come first by `rank`."""
    compiled = compiled or ("recommended" if can_compile_for(cluster.gpu) else "nothing")
    allowed = []
    for search in searches:
        with suppress(ConfigError):
            search.estimate()
            allowed.append(search)
    if not allowed:
        searches[0].estimate()  # which says why
    waiting = [search for search in allowed if search.best]
    while waiting and compiled != "nothing":
        first = min(waiting, key=lambda s: rank(s.best) if s.best else (math.inf,))
        waiting.remove(first)
        first.confirm()
        ahead = [s for s in waiting if s.best and first.best and rank(s.best) < rank(first.best)]
        if compiled == "recommended" and first.best:
            waiting = ahead
    return allowed


def largest_fit(peak: Callable[[int], int], usable: int, high: int, extent: Callable[[int], float] = float) -> int:
    """The largest whole number from 1 on whose peak is within the usable memory.

    Args:
        peak: bytes of a number; may only grow.
        usable: bytes.
        high: the largest number to look at.
        extent: what the peak grows with in about a straight line; may only grow.

    Returns:
        The number, within one part of `PRECISION`; 0 if none fits.

    Example:
        >>> largest_fit(lambda n: 10 + 3 * n, 100, 1000), largest_fit(lambda n: 10 + 3 * n, 12, 1000)
        (30, 0)
    """
    low, beyond, seen = 0, high + 1, dict[int, int]()
    trial = 1
    while True:
        seen[trial] = peak(trial)
        low, beyond = (trial, beyond) if seen[trial] <= usable else (low, trial)
        if beyond - low <= max(1, low // PRECISION):
            return low
        trial = min(max(_guess(seen, low, beyond, usable, extent), low + 1), beyond - 1)


def _guess(seen: Mapping[int, int], low: int, beyond: int, usable: int, extent: Callable[[int], float]) -> int:
    """Where a straight line through two sizes crosses the usable memory; the middle, once lines have had their turn."""
    if len(seen) == 1 or len(seen) > 8:
        return 2 * low if beyond not in seen else (low + beyond) // 2
    other = beyond if beyond in seen else max(n for n in seen if n < low)
    slope = (seen[other] - seen[low]) / (extent(other) - extent(low))
    if slope <= 0:
        return 8 * low
    reach = extent(low) + (usable - seen[low]) / slope
    return min(8 * low, bisect.bisect_right(range(low, beyond), reach, key=extent) + low - 1)
