"""`scheduler`: DeepSpeed's and torch's schedules by name, and what to use instead of the others."""

import difflib
from collections.abc import Iterator, Mapping

from jzero.base.types import Json
from jzero.config.schema import deepspeed_schedules as d
from jzero.config.schema import torch_schedules as t
from jzero.config.schema.scalars import Anything, Text, shown
from jzero.config.schema.section import Section, SectionType
from jzero.config.schema.verdicts import honoured

PARAMS: dict[str, SectionType] = {
    "WarmupLR": d.WarmupParams,
    "WarmupDecayLR": d.WarmupDecayParams,
    "WarmupCosineLR": d.WarmupCosineParams,
    "OneCycle": d.OneCycleParams,
    "LRRangeTest": d.LRRangeTestParams,
    "ConstantLR": t.ConstantParams,
    "LinearLR": t.LinearParams,
    "PolynomialLR": t.PolynomialParams,
    "StepLR": t.StepParams,
    "MultiStepLR": t.MultiStepParams,
    "ExponentialLR": t.ExponentialParams,
    "CosineAnnealingLR": t.CosineAnnealingParams,
    "CosineAnnealingWarmRestarts": t.WarmRestartsParams,
    "CyclicLR": t.CyclicParams,
    "OneCycleLR": t.OneCycleLRParams,
}

INSTEAD: dict[str, str] = {
    "ReduceLROnPlateau": "WarmupDecayLR, or chain optax.contrib.reduce_on_plateau behind an optimizer of your own",
    "LambdaLR": "WarmupDecayLR or WarmupCosineLR, or pass an optax schedule to jzero.initialize",
    "MultiplicativeLR": "ExponentialLR, or pass an optax schedule to jzero.initialize",
    "SequentialLR": "OneCycleLR or WarmupCosineLR, or pass optax.join_schedules to jzero.initialize",
    "ChainedScheduler": "WarmupDecayLR, or pass an optax schedule to jzero.initialize",
    "SWALR": "LinearLR",
}

_NAMES = f"{', '.join(list(PARAMS)[:-1])} or {list(PARAMS)[-1]}"


class SchedulerConfig(Section):
    """`scheduler`."""

    type: Text | None = honoured(None, _NAMES)
    params: (
        d.WarmupParams
        | d.WarmupDecayParams
        | d.WarmupCosineParams
        | d.OneCycleParams
        | d.LRRangeTestParams
        | t.ConstantParams
        | t.LinearParams
        | t.PolynomialParams
        | t.StepParams
        | t.MultiStepParams
        | t.ExponentialParams
        | t.CosineAnnealingParams
        | t.WarmRestartsParams
        | t.CyclicParams
        | t.OneCycleLRParams
        | Anything
    ) = honoured(None, "of the type, by DeepSpeed's and torch's names")

    @classmethod
    def subsection(cls, name: str, data: Mapping[str, Json]) -> SectionType | None:
        """The parameters' schema follows from the type."""
        return PARAMS.get(str(data.get("type"))) if name == "params" else None

    @classmethod
    def rewrite(cls, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """Missing parameters are the defaults of the type."""
        return {**data, "params": {} if data.get("params") is None else data["params"]}

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Names the types that exist, and the nearest one for those that do not exist here."""
        kind = values.get("type")
        if kind is None and values.get("params"):
            yield "type", f"is missing: one of {', '.join(PARAMS)}"
        elif kind is not None and kind not in PARAMS:
            close = difflib.get_close_matches(kind, PARAMS, n=1)
            advice = INSTEAD.get(kind) or (close[0] if close else f"{_NAMES}, or pass an optax schedule to initialize")
            yield "type", f"= {shown(kind)} is refused: use {advice}"
