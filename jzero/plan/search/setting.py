"""What a plan varies of a run: stage, offloading, groups of devices, micro-batch and rematerialisation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from jzero.config import Config

Offload = Literal["nothing", "optimizer", "optimizer and parameters"]

Groups = Literal["none", "two levels", "MiCS"]


@dataclass(frozen=True)
class Setting:
    """One way to run.

    Attributes:
        stage: `zero_optimization.stage`.
        offload: what lives in host memory.
        micro_batch: `train_micro_batch_size_per_gpu`.
        accumulation: `gradient_accumulation_steps`.
        remat: blocks are recomputed in the backward pass though the model as given keeps their activations.
        groups: what groups of GPUs share at stage 3: "two levels" is `zero_optimization.zero_hpz_partition_size`,
            "MiCS" is `mics_shard_size`.
        group: GPUs of a group, such as a node's; 1 without groups.
    """

    stage: int
    offload: Offload
    micro_batch: int
    accumulation: int
    remat: bool = False
    groups: Groups = "none"
    group: int = 1

    def __str__(self) -> str:
        moved = "" if self.offload == "nothing" else f" with {self.offload} in host memory"
        return f"stage {self.stage}{self.in_groups}{moved}"

    @property
    def in_groups(self) -> str:
        """What groups share, as words to follow a stage; empty without groups.

        >>> Setting(3, "nothing", 1, 1, groups="two levels", group=8).in_groups
        ' at two levels'
        """
        words: dict[Groups, str] = {"none": "", "two levels": " at two levels", "MiCS": " with MiCS"}
        return words[self.groups] if self.stage == 3 else ""


def settings(base: Setting, stages: Iterable[int], group: int = 1) -> Iterator[Setting]:
    """All stages with all that each can offload: first those without it, which copies over PCIe in every step.

    Args:
        base: the batch, and what else stays the same.
        stages: which stages.
        group: GPUs that groups have where they are to be looked at: stage 3 without offloading then comes as it is, at
            two levels and with MiCS, whatever is given.

    Example:
        >>> [(s.stage, s.offload) for s in settings(Setting(0, "nothing", 4, 1), [0, 2])]
        [(0, 'nothing'), (2, 'nothing'), (2, 'optimizer')]
    """
    firsts: dict[Offload, int] = {"nothing": 0, "optimizer": 1, "optimizer and parameters": 3}
    ordered = sorted(stages)
    for offload, first in firsts.items():
        for stage in ordered:
            if stage == 3 and offload == "nothing" and group > 1:
                plain = replace(base, stage=3, offload=offload, groups="none", group=1)
                yield from (plain, *(replace(plain, groups=g, group=group) for g in ("two levels", "MiCS")))
            elif stage >= first:
                yield replace(base, stage=stage, offload=offload)


def fallbacks(setting: Setting, *, divisible: bool, remat: bool) -> Iterator[Setting]:
    """The next settings that hold less: a smaller micro-batch, and rematerialised blocks.

    Args:
        setting: stage and offloading stay.
        divisible: whether the micro-batch may shrink. It is divided by its smallest factor, and there are so many times
            more of them, so that `train_batch_size` and with it the training stay the same.
        remat: whether the model can be rebuilt with rematerialised blocks.

    Example:
        >>> some = fallbacks(Setting(0, "nothing", 9, 2), divisible=True, remat=True)
        >>> [(s.micro_batch, s.accumulation, s.remat) for s in some]
        [(3, 6, False), (9, 2, True)]
    """
    micro = setting.micro_batch
    if divisible and micro > 1:
        factor = next(n for n in range(2, micro + 1) if micro % n == 0)
        yield replace(setting, micro_batch=micro // factor, accumulation=setting.accumulation * factor)
    if remat and not setting.remat:
        yield replace(setting, remat=True)


def changes(setting: Setting, base: Setting) -> dict[str, int | str]:
    """The keys of the DeepSpeed configuration that make one setting another, by dotted path.

    Args:
        setting: what is wanted.
        base: what there is.

    Example:
        >>> changes(Setting(2, "optimizer", 2, 2), Setting(0, "nothing", 2, 2))
        {'zero_optimization.stage': 2, 'zero_optimization.offload_optimizer.device': 'cpu'}
    """
    wanted, given = _keys(setting), _keys(base)
    changed = {path: value for path, value in wanted.items() if value != given[path]}
    # A node's devices may have been asked for by the other key.
    return changed | ({_AUTO: "none"} if base.groups == "two levels" and _HPZ in changed else {})


_HPZ, _MICS = "zero_optimization.zero_hpz_partition_size", "zero_optimization.mics_shard_size"
_AUTO = "jzero.two_level"


def _keys(setting: Setting) -> dict[str, int | str]:
    device = {True: "cpu", False: "none"}
    return {
        "zero_optimization.stage": setting.stage,
        "zero_optimization.offload_optimizer.device": device[setting.offload != "nothing"],
        "zero_optimization.offload_param.device": device[setting.offload == "optimizer and parameters"],
        _HPZ: setting.group if setting.groups == "two levels" else 1,
        _MICS: setting.group if setting.groups == "MiCS" else -1,
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
    values = {path: value for path, value in _keys(setting).items() if batch or "." in path}
    return config.replaced(values | ({} if config.jzero.two_level == "none" else {_AUTO: "none"}))
