"""What a plan varies of a run: stage, offloading, micro-batch and rematerialisation, and what it tries first."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from jzero.config import Config
from jzero.config.section import given

Offload = Literal["nothing", "optimizer", "optimizer and parameters"]


@dataclass(frozen=True)
class Setting:
    """One way to run.

    Attributes:
        stage: `zero_optimization.stage`.
        offload: what lives in host memory.
        micro_batch: `train_micro_batch_size_per_gpu`.
        accumulation: `gradient_accumulation_steps`.
        remat: blocks are recomputed in the backward pass though the model as given keeps their activations.
    """

    stage: int
    offload: Offload
    micro_batch: int
    accumulation: int
    remat: bool = False

    def __str__(self) -> str:
        moved = "" if self.offload == "nothing" else f" with {self.offload} in host memory"
        return f"stage {self.stage}{moved}"


def settings(base: Setting, stages: Sequence[int]) -> Iterator[Setting]:
    """All stages with all that each can offload, the cheapest first.

    Offloading costs copies over PCIe in every step, so every stage without it comes before any with it; of two stages
    the lower one sends less or the same.

    Args:
        base: the batch, and what else stays the same.
        stages: which stages.

    Example:
        >>> [(s.stage, s.offload) for s in settings(Setting(0, "nothing", 4, 1), [0, 2])]
        [(0, 'nothing'), (2, 'nothing'), (2, 'optimizer')]
    """
    firsts: dict[Offload, int] = {"nothing": 0, "optimizer": 1, "optimizer and parameters": 3}
    for offload, first in firsts.items():
        for stage in sorted(stages):
            if stage >= first:
                yield replace(base, stage=stage, offload=offload)


def candidates(base: Setting, stages: Sequence[int], *, smaller: bool, remat: bool) -> Iterator[Setting]:
    """What may be recommended, the cheapest first: `settings`, then smaller micro-batches, then rematerialisation.

    Args:
        base: the run as given.
        stages: which stages.
        smaller: whether the micro-batch may shrink. Each is divided by its smallest factor, and there are so many times
            more of them, so that `train_batch_size` and with it the training stay the same.
        remat: whether the model can be rebuilt with rematerialised blocks.

    Example:
        >>> some = candidates(Setting(0, "nothing", 4, 1), [0], smaller=True, remat=True)
        >>> [(s.micro_batch, s.accumulation, s.remat) for s in some]
        [(4, 1, False), (2, 2, False), (1, 4, False), (4, 1, True), (2, 2, True), (1, 4, True)]
    """
    for recomputes in (False, True) if remat else (False,):
        micro, accumulation = base.micro_batch, base.accumulation
        while True:
            yield from settings(replace(base, micro_batch=micro, accumulation=accumulation, remat=recomputes), stages)
            if micro == 1 or not smaller:
                break
            factor = next(n for n in range(2, micro + 1) if micro % n == 0)
            micro, accumulation = micro // factor, accumulation * factor


def changes(setting: Setting, base: Setting) -> dict[str, Any]:
    """The keys of the DeepSpeed configuration that make one setting another, by dotted path.

    Args:
        setting: what is wanted.
        base: what there is.

    Example:
        >>> changes(Setting(2, "optimizer", 2, 2), Setting(0, "nothing", 2, 2))
        {'zero_optimization.stage': 2, 'zero_optimization.offload_optimizer.device': 'cpu'}
    """
    wanted, given = _keys(setting), _keys(base)
    return {path: value for path, value in wanted.items() if value != given[path]}


def _keys(setting: Setting) -> dict[str, Any]:
    device = {True: "cpu", False: "none"}
    return {
        "zero_optimization.stage": setting.stage,
        "zero_optimization.offload_optimizer.device": device[setting.offload != "nothing"],
        "zero_optimization.offload_param.device": device[setting.offload == "optimizer and parameters"],
        "train_micro_batch_size_per_gpu": setting.micro_batch,
        "gradient_accumulation_steps": setting.accumulation,
    }


def with_setting(config: Config, setting: Setting, *, batch: bool) -> Config:
    """A configuration as given, with a setting in the place of its own.

    Args:
        config: not resolved yet: what `"auto"` becomes may depend on the stage.
        setting: what is wanted.
        batch: whether the batch sizes are set too; otherwise they are what the configuration makes them.

    Raises:
        ConfigError: the configuration does not allow the setting.
    """
    data = given(config)
    for path, value in _keys(setting).items():
        *outer, name = path.split(".")
        if not outer and not batch:
            continue
        place = data
        for key in outer:
            place[key] = dict(place.get(key) or {})
            place = place[key]
        place[name] = value
    return Config.load(data)
