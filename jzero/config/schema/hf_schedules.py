"""`training_arguments.lr_scheduler_type` and its `lr_scheduler_kwargs`; the formulas are in `jzero.schedules`."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import PlainValidator

from jzero.base.types import Json
from jzero.config.schema.scalars import LARGEST_32, Count32, Fraction, Positive32, Rate, choice, real, whole
from jzero.config.schema.section import Section, SectionType

Shape = Annotated[str, choice("linear", "cosine", "1-sqrt")]


class NoKwargs(Section):
    """`lr_scheduler_kwargs` of linear, constant and constant_with_warmup."""


class CosineKwargs(Section):
    """`lr_scheduler_kwargs` of cosine."""

    num_cycles: Rate = 0.5


class RestartsKwargs(Section):
    """`lr_scheduler_kwargs` of cosine_with_restarts."""

    num_cycles: Positive32 = 1


class PolynomialKwargs(Section):
    """`lr_scheduler_kwargs` of polynomial."""

    lr_end: Rate = 1e-7
    power: Annotated[float, real(0, 1000)] = 1.0


class InverseSqrtKwargs(Section):
    """`lr_scheduler_kwargs` of inverse_sqrt; without a timescale it is the warm-up's length, or 10,000."""

    timescale: Annotated[int, whole(1, LARGEST_32 // 2)] | None = None


class MinLrKwargs(Section):
    """`lr_scheduler_kwargs` of cosine_with_min_lr."""

    num_cycles: Rate = 0.5
    min_lr: Rate | None = None
    min_lr_rate: Fraction | None = None

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """The minimum is said in one of two ways."""
        if (values.get("min_lr") is None) == (values.get("min_lr_rate") is None):
            yield "min_lr", "or `min_lr_rate` must be given, and only one of the two"


class WarmupMinLrKwargs(MinLrKwargs):
    """`lr_scheduler_kwargs` of cosine_warmup_with_min_lr."""

    warmup_lr_rate: Fraction | None = None


class StableKwargs(Section):
    """`lr_scheduler_kwargs` of warmup_stable_decay."""

    num_decay_steps: Count32
    num_stable_steps: Count32 | None = None
    warmup_type: Shape = "linear"
    decay_type: Shape = "cosine"
    min_lr_ratio: Fraction = 0.0
    num_cycles: Rate = 0.5


KWARGS: dict[str, SectionType] = {
    "linear": NoKwargs,
    "cosine": CosineKwargs,
    "cosine_with_restarts": RestartsKwargs,
    "polynomial": PolynomialKwargs,
    "constant": NoKwargs,
    "constant_with_warmup": NoKwargs,
    "inverse_sqrt": InverseSqrtKwargs,
    "cosine_with_min_lr": MinLrKwargs,
    "cosine_warmup_with_min_lr": WarmupMinLrKwargs,
    "warmup_stable_decay": StableKwargs,
}
"""The schedules by Hugging Face's names."""


def _type(value: Json) -> Json:
    if value == "reduce_lr_on_plateau":
        raise ValueError(f"= {value!r} is refused: it follows a metric; use linear, or cosine_with_min_lr")
    return choice(*KWARGS).func(value)  # type: ignore[call-arg]


LrSchedulerType = Annotated[str, PlainValidator(_type)]
