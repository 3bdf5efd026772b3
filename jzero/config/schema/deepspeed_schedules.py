"""`scheduler.params` of DeepSpeed's schedules; `jzero.schedules.deepspeed` has the formulas."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from jzero.base.types import Json
from jzero.config.schema.rates import RATES, too_long
from jzero.config.schema.scalars import (
    LARGEST_32,
    Count32,
    Decay,
    Fraction,
    Positive32,
    Rate,
    Steps,
    Switch,
    Whole,
    choice,
    whole,
)
from jzero.config.schema.section import Order, Section
from jzero.config.schema.verdicts import honoured, refused

Stairs = Annotated[int, whole(0, 10_000)]
WarmupType = Annotated[str, choice("log", "linear")]


class _DeepSpeed(Section):
    last_batch_iteration: Whole = refused(-1, "a checkpoint restores the position of the schedule")


class _Warmup(_DeepSpeed):
    warmup_num_steps: Steps = honoured(1000, "updates until the maximum is reached; fewer than 2 count as 2")
    warmup_type: WarmupType = honoured("log", "rises with the logarithm of the updates, or in a line")


_UP_BEFORE_DOWN = Order(
    "warmup_num_steps", "total_num_steps", note="the run ends before its warm-up does, and the rate never falls"
)


class WarmupParams(_Warmup):
    """`scheduler.params` of WarmupLR."""

    warmup_min_lr: Rate = honoured(0.0, "the rate of the first two updates")
    warmup_max_lr: Rate | None = honoured(None, "the optimizer's learning rate", usual=RATES)

    needless: ClassVar[Mapping[str, str]] = {"total_num_steps": "WarmupLR has no end; WarmupDecayLR has one"}
    in_order = (Order("warmup_min_lr", "warmup_max_lr"),)


class WarmupDecayParams(_Warmup):
    """`scheduler.params` of WarmupDecayLR."""

    total_num_steps: Positive32 = honoured(..., "updates of the whole run")
    warmup_min_lr: Rate = honoured(0.0, "the rate of the first two updates")
    warmup_max_lr: Rate = honoured(1e-3, "not the optimizer's learning rate: DeepSpeed has a number here", usual=RATES)

    in_order = (Order("warmup_min_lr", "warmup_max_lr"), _UP_BEFORE_DOWN)


class WarmupCosineParams(_Warmup):
    """`scheduler.params` of WarmupCosineLR."""

    synonyms: ClassVar[Mapping[str, str]] = {
        "warmup_min_lr": "warmup_min_ratio",
        "warmup_max_lr": "optimizer.params.lr",
    }

    total_num_steps: Positive32 = honoured(..., "updates of the whole run")
    warmup_min_ratio: Fraction = honoured(0.0, "of the optimizer's learning rate, where the warm-up starts")
    cos_min_ratio: Fraction = honoured(1e-4, "of the optimizer's learning rate, where the cosine ends")

    in_order = (_UP_BEFORE_DOWN,)


class OneCycleParams(_DeepSpeed):
    """`scheduler.params` of OneCycle."""

    cycle_min_lr: Rate = honoured(..., "the rate at both ends of the cycle")
    cycle_max_lr: Rate = honoured(..., "the rate at its top", usual=RATES)
    decay_lr_rate: Rate = honoured(0.0, "after the cycle the rate is cycle_min_lr / (1 + decay_lr_rate * d)")
    cycle_first_step_size: Positive32 = honoured(2000, "updates from cycle_min_lr to cycle_max_lr")
    cycle_second_step_size: Positive32 | None = honoured(None, "updates back; cycle_first_step_size when not given")
    cycle_first_stair_count: Stairs = honoured(0, "stairs up in place of a line; 0 for none")
    cycle_second_stair_count: Stairs | None = honoured(None, "stairs down; cycle_first_stair_count when not given")
    decay_step_size: Count32 = honoured(0, "updates after the cycle that count as d = 1; 0 switches decay off")
    cycle_momentum: Switch = honoured(
        True, "cycles betas[0] against the rate and sets betas[1] to 0.99; optimizers without betas keep their momentum"
    )
    cycle_min_mom: Decay = honoured(0.8, "betas[0] at the top of the cycle, and of the first update")
    cycle_max_mom: Decay = honoured(0.9, "betas[0] at both ends of the cycle")
    decay_mom_rate: Rate = honoured(0.0, "after the cycle betas[0] is cycle_max_mom * (1 + decay_mom_rate * d)")

    in_order = (Order("cycle_min_lr", "cycle_max_lr"), Order("cycle_min_mom", "cycle_max_mom"))

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Both halves of the cycle are counted together."""
        yield from too_long(values, "cycle_first_step_size", "cycle_second_step_size")

    def cautions(self) -> Iterator[tuple[str, str]]:
        """A momentum that grows reaches 1, where nothing is ever forgotten."""
        if self.cycle_momentum is True and self.decay_step_size and self.decay_mom_rate:
            intervals = (1 / self.cycle_max_mom - 1) / self.decay_mom_rate if self.cycle_max_mom else math.inf
            updates = self.cycle_first_step_size + (self.cycle_second_step_size or self.cycle_first_step_size)
            if (updates := updates + intervals * self.decay_step_size) < LARGEST_32:
                yield "decay_mom_rate", f"= {self.decay_mom_rate:g} brings betas[0] to 1 after {updates:.0f} updates"


class LRRangeTestParams(_DeepSpeed):
    """`scheduler.params` of LRRangeTest."""

    lr_range_test_min_lr: Rate = honoured(1e-3, "the first rate")
    lr_range_test_step_size: Positive32 = honoured(2000, "updates of one interval")
    lr_range_test_step_rate: Rate = honoured(1.0, "the rate grows by this share of the first one in each interval")
    lr_range_test_staircase: Switch = honoured(False, "grows at the end of each interval only")
