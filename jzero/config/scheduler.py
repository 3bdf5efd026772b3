"""`scheduler`: DeepSpeed's warm-up schedules and their parameters; `jzero.schedules` has the formulas."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from jzero.config.scalars import Anything, Count, Fraction, NonNegative, Positive, Text, Whole, choice
from jzero.config.section import Section, SectionType
from jzero.config.verdicts import honoured, refused

WarmupType = Annotated[str, choice("log", "linear")]


class _Warmup(Section):
    warmup_num_steps: Count = honoured(1000, "updates until the maximum is reached; fewer than 2 count as 2")
    warmup_type: WarmupType = honoured("log")
    last_batch_iteration: Whole = refused(-1, "a checkpoint restores the position of the schedule")


class WarmupParams(_Warmup):
    """`scheduler.params` of WarmupLR."""

    warmup_min_lr: NonNegative = honoured(0.0)
    warmup_max_lr: NonNegative | None = honoured(None, "the optimizer's learning rate")


class WarmupDecayParams(_Warmup):
    """`scheduler.params` of WarmupDecayLR."""

    total_num_steps: Positive
    warmup_min_lr: NonNegative = honoured(0.0)
    warmup_max_lr: NonNegative = honoured(1e-3, "not the optimizer's learning rate: DeepSpeed has a number here")


class WarmupCosineParams(_Warmup):
    """`scheduler.params` of WarmupCosineLR."""

    total_num_steps: Positive
    warmup_min_ratio: Fraction = honoured(0.0)
    cos_min_ratio: Fraction = honoured(1e-4)


PARAMS: dict[str, SectionType] = {
    "WarmupLR": WarmupParams,
    "WarmupDecayLR": WarmupDecayParams,
    "WarmupCosineLR": WarmupCosineParams,
}

INSTEAD: dict[str, str] = {
    "OneCycle": "WarmupCosineLR or WarmupDecayLR",
    "LRRangeTest": "a constant learning rate",
    "CosineAnnealingLR": "WarmupCosineLR",
    "LinearLR": "WarmupDecayLR",
    "ConstantLR": "no scheduler section",
}


class SchedulerConfig(Section):
    """`scheduler`."""

    type: Text | None = honoured(None, "WarmupLR, WarmupDecayLR or WarmupCosineLR")
    params: WarmupParams | WarmupDecayParams | WarmupCosineParams | Anything = honoured(None)

    @classmethod
    def subsection(cls, name: str, data: Mapping[str, Any]) -> SectionType | None:
        """The parameters' schema follows from the type."""
        return PARAMS.get(str(data.get("type"))) if name == "params" else None

    @classmethod
    def rewrite(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Missing parameters are the defaults of the type."""
        return {**data, "params": data.get("params") or {}}

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Names the types that exist, and the nearest one for those that do not exist here."""
        kind = values.get("type")
        if kind is None and values.get("params"):
            yield "type", "is missing: one of WarmupLR, WarmupDecayLR, WarmupCosineLR"
        elif kind is not None and kind not in PARAMS:
            advice = f"use {INSTEAD[kind]}" if kind in INSTEAD else "use WarmupLR, WarmupDecayLR or WarmupCosineLR"
            yield "type", f"= {kind!r} is refused: {advice}, or pass an optax schedule to jzero.initialize"
