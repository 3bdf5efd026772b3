"""`scheduler.params` of torch's schedules, which DeepSpeed takes too; `jzero.schedules.torch` has the formulas."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import PlainValidator

from jzero.base.types import Json
from jzero.config.schema.rates import RATES, too_long
from jzero.config.schema.scalars import (
    LARGEST_32,
    Anything,
    Count32,
    Decay,
    Fraction,
    Positive32,
    Rate,
    Switch,
    Whole,
    choice,
    is_auto,
    real,
    shown,
    whole,
)
from jzero.config.schema.section import Order, Section
from jzero.config.schema.verdicts import Usual, honoured, no_effect, refused


def _counts(value: Json) -> tuple[int, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of whole numbers, got {shown(value)}")
    if any(map(is_auto, value)):
        raise ValueError(f'must be a list of whole numbers, and none of them "auto", got {shown(value)}')
    return tuple(sorted(whole(0, LARGEST_32).func(v) for v in value))  # type: ignore[call-arg]


Counts = Annotated[tuple[int, ...], PlainValidator(_counts)]
AboveZero = Annotated[float, real(1e-30, 1e6)]
HalfOf32 = Annotated[int, whole(1, LARGEST_32 // 2)]
_SHRINKS = Usual(0, 1, "a factor above 1 lets the rate grow")
_MOMENTUM = "cycles betas[0], or the momentum of SGD and RMSprop, against the rate"


class _Torch(Section):
    last_epoch: Whole = refused(-1, "a checkpoint restores the position of the schedule")
    verbose: Anything = no_effect(False, "every step returns its learning rate")


class ConstantParams(_Torch):
    """`scheduler.params` of ConstantLR."""

    factor: Fraction = honoured(1 / 3, "on the rate of the first total_iters updates")
    total_iters: Count32 = honoured(5, "updates with the factor")


class LinearParams(_Torch):
    """`scheduler.params` of LinearLR."""

    start_factor: Fraction = honoured(1 / 3, "on the rate of the first update")
    end_factor: Fraction = honoured(1.0, "on the rate after total_iters updates")
    total_iters: Positive32 = honoured(5, "updates from one factor to the other")


class PolynomialParams(_Torch):
    """`scheduler.params` of PolynomialLR."""

    total_iters: Positive32 = honoured(5, "updates until the rate is 0")
    power: Annotated[float, real(0, 1000)] = honoured(1.0, "of the remaining share")


class StepParams(_Torch):
    """`scheduler.params` of StepLR."""

    step_size: Positive32 = honoured(..., "updates between two steps")
    gamma: AboveZero = honoured(0.1, "factor on the rate every step_size updates", usual=_SHRINKS)


class MultiStepParams(_Torch):
    """`scheduler.params` of MultiStepLR."""

    milestones: Counts = honoured(..., "numbers of updates")
    gamma: AboveZero = honoured(0.1, "factor on the rate at each milestone", usual=_SHRINKS)


class ExponentialParams(_Torch):
    """`scheduler.params` of ExponentialLR."""

    gamma: AboveZero = honoured(..., "factor on the rate at each update", usual=_SHRINKS)


class CosineAnnealingParams(_Torch):
    """`scheduler.params` of CosineAnnealingLR."""

    T_max: HalfOf32 = honoured(..., "updates from the optimizer's rate to eta_min; the way back takes as many")
    eta_min: Rate = honoured(0.0, "the smallest rate")


class WarmRestartsParams(_Torch):
    """`scheduler.params` of CosineAnnealingWarmRestarts."""

    T_0: Positive32 = honoured(..., "updates of the first cycle")
    T_mult: Positive32 = honoured(1, "each cycle is so many times as long as the one before")
    eta_min: Rate = honoured(0.0, "the smallest rate")


class CyclicParams(_Torch):
    """`scheduler.params` of CyclicLR."""

    base_lr: Rate = honoured(..., "the rate at both ends of a cycle")
    max_lr: Rate = honoured(..., "the rate at its top", usual=RATES)
    step_size_up: Positive32 = honoured(2000, "updates from base_lr to max_lr")
    step_size_down: Positive32 | None = honoured(None, "updates back; step_size_up when not given")
    mode: Annotated[str, choice("triangular", "triangular2", "exp_range")] = honoured(
        "triangular", "triangular2 halves the height of each cycle, exp_range lowers it at each update"
    )
    gamma: AboveZero = honoured(1.0, "mode exp_range: the height of update k has the factor gamma ** k", usual=_SHRINKS)
    scale_mode: Annotated[str, choice("cycle", "iterations")] = no_effect("cycle", "only a scale_fn would read it")
    cycle_momentum: Switch = honoured(True, _MOMENTUM)
    base_momentum: Decay = honoured(0.8, "at the top of a cycle")
    max_momentum: Decay = honoured(0.9, "at both ends of a cycle")

    in_order = (Order("base_lr", "max_lr"), Order("base_momentum", "max_momentum"))

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Both halves of a cycle are counted together."""
        yield from too_long(values, "step_size_up", "step_size_down")


class OneCycleLRParams(_Torch):
    """`scheduler.params` of OneCycleLR."""

    max_lr: Rate = honoured(..., "the rate at the top of the cycle", usual=RATES)
    total_steps: Positive32 | None = honoured(None, "epochs * steps_per_epoch when not given; then the last rate stays")
    epochs: Positive32 | None = honoured(None, "with steps_per_epoch, in place of total_steps")
    steps_per_epoch: Positive32 | None = honoured(None, "with epochs, in place of total_steps")
    pct_start: Fraction = honoured(0.3, "share of the updates in which the rate rises")
    anneal_strategy: Annotated[str, choice("cos", "linear")] = honoured(
        "cos", "half a cosine from rate to rate, or a line"
    )
    cycle_momentum: Switch = honoured(True, _MOMENTUM)
    base_momentum: Decay = honoured(0.85, "at the top of the cycle")
    max_momentum: Decay = honoured(0.95, "at both ends of the cycle")
    div_factor: AboveZero = honoured(25.0, "max_lr over this is the first rate")
    final_div_factor: AboveZero = honoured(1e4, "the first rate over this is the last one")
    three_phase: Switch = honoured(False, "falls back to the first rate before it falls to the last one")

    in_order = (Order("base_momentum", "max_momentum"),)

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """As torch: the length is given in one of two ways."""
        epochs, steps = values.get("epochs"), values.get("steps_per_epoch")
        if values.get("total_steps") is not None or any(map(is_auto, (epochs, steps))):
            return
        if not epochs or not steps:
            yield "total_steps", "is missing: give it, or `epochs` and `steps_per_epoch`"
        elif epochs * steps > LARGEST_32:
            yield "epochs", f"= {epochs} of `steps_per_epoch` = {steps} are more than {LARGEST_32} updates"
