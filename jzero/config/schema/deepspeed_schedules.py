"""`scheduler.params` of DeepSpeed's schedules; `jzero.schedules.deepspeed` has the formulas."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from jzero.config.schema.scalars import Count, Fraction, NonNegative, Positive, Real, Steps, Switch, Whole, choice
from jzero.config.schema.section import Section
from jzero.config.schema.verdicts import honoured, refused

WarmupType = Annotated[str, choice("log", "linear")]


class _DeepSpeed(Section):
    last_batch_iteration: Whole = refused(-1, "a checkpoint restores the position of the schedule")


class _Warmup(_DeepSpeed):
    warmup_num_steps: Steps = honoured(1000, "updates until the maximum is reached; fewer than 2 count as 2")
    warmup_type: WarmupType = honoured("log", "rises with the logarithm of the updates, or in a line")


class WarmupParams(_Warmup):
    """`scheduler.params` of WarmupLR."""

    warmup_min_lr: NonNegative = honoured(0.0, "the rate of the first two updates")
    warmup_max_lr: NonNegative | None = honoured(None, "the optimizer's learning rate")


class WarmupDecayParams(_Warmup):
    """`scheduler.params` of WarmupDecayLR."""

    total_num_steps: Positive = honoured(..., "updates of the whole run")
    warmup_min_lr: NonNegative = honoured(0.0, "the rate of the first two updates")
    warmup_max_lr: NonNegative = honoured(1e-3, "not the optimizer's learning rate: DeepSpeed has a number here")


class WarmupCosineParams(_Warmup):
    """`scheduler.params` of WarmupCosineLR."""

    synonyms: ClassVar[Mapping[str, str]] = {
        "warmup_min_lr": "warmup_min_ratio",
        "warmup_max_lr": "optimizer.params.lr",
    }

    total_num_steps: Positive = honoured(..., "updates of the whole run")
    warmup_min_ratio: Fraction = honoured(0.0, "of the optimizer's learning rate, where the warm-up starts")
    cos_min_ratio: Fraction = honoured(1e-4, "of the optimizer's learning rate, where the cosine ends")


class OneCycleParams(_DeepSpeed):
    """`scheduler.params` of OneCycle."""

    cycle_min_lr: NonNegative = honoured(..., "the rate at both ends of the cycle")
    cycle_max_lr: NonNegative = honoured(..., "the rate at its top")
    decay_lr_rate: NonNegative = honoured(0.0, "after the cycle the rate is cycle_min_lr / (1 + decay_lr_rate * d)")
    cycle_first_step_size: Positive = honoured(2000, "updates from cycle_min_lr to cycle_max_lr")
    cycle_second_step_size: Positive | None = honoured(None, "updates back; cycle_first_step_size when not given")
    cycle_first_stair_count: Count = honoured(0, "stairs up in place of a line; 0 for none")
    cycle_second_stair_count: Count | None = honoured(None, "stairs down; cycle_first_stair_count when not given")
    decay_step_size: Count = honoured(0, "updates after the cycle that count as d = 1; 0 switches decay off")
    cycle_momentum: Switch = honoured(
        True, "cycles betas[0] against the rate and sets betas[1] to 0.99; optimizers without betas keep their momentum"
    )
    cycle_min_mom: Fraction = honoured(0.8, "betas[0] at the top of the cycle, and of the first update")
    cycle_max_mom: Fraction = honoured(0.9, "betas[0] at both ends of the cycle")
    decay_mom_rate: NonNegative = honoured(0.0, "after the cycle betas[0] is cycle_max_mom * (1 + decay_mom_rate * d)")


class LRRangeTestParams(_DeepSpeed):
    """`scheduler.params` of LRRangeTest."""

    lr_range_test_min_lr: NonNegative = honoured(1e-3, "the first rate")
    lr_range_test_step_size: Positive = honoured(2000, "updates of one interval")
    lr_range_test_step_rate: Real = honoured(1.0, "the rate grows by this share of the first one in each interval")
    lr_range_test_staircase: Switch = honoured(False, "grows at the end of each interval only")
