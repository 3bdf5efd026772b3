"""`training_arguments`: the Hugging Face names that a run file may use, with Hugging Face's defaults."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated

from jzero.base.types import Json
from jzero.config.schema.building import build
from jzero.config.schema.hf_schedules import KWARGS, LrSchedulerType
from jzero.config.schema.scalars import (
    LARGEST_32,
    Anything,
    Count32,
    Decay,
    Fraction,
    NonNegative,
    Positive,
    Positive32,
    Rate,
    Switch,
    Text,
    is_auto,
    real,
    whole,
)
from jzero.config.schema.section import Section, SectionType


class TrainingArguments(Section):
    """How long and how fast to train; fills every `"auto"` of the DeepSpeed part.

    Example:
        >>> TrainingArguments(learning_rate=3e-4, max_steps=200, warmup_ratio=0.1).warmup_updates(200)
        20
    """

    output_dir: Text = "runs"
    learning_rate: Rate = 5e-5
    per_device_train_batch_size: Positive32 = 8
    gradient_accumulation_steps: Positive32 = 1
    num_train_epochs: Annotated[float, real(0, 1e6)] = 3.0
    max_steps: Annotated[int, whole(-1, LARGEST_32)] = -1
    lr_scheduler_type: LrSchedulerType = "linear"
    lr_scheduler_kwargs: Anything = None
    warmup_ratio: Fraction = 0.0
    warmup_steps: Count32 = 0
    weight_decay: Rate = 0.0
    adam_beta1: Decay = 0.9
    adam_beta2: Decay = 0.999
    adam_epsilon: Rate = 1e-8
    max_grad_norm: NonNegative = 1.0
    fp16: Switch = False
    bf16: Switch = False
    seed: Annotated[int, whole(0, 2**32 - 1)] = 42
    logging_steps: Positive = 500
    eval_steps: Positive | None = None
    save_steps: Positive = 500
    save_total_limit: Positive | None = None
    ddp_timeout: Positive = 1800

    @classmethod
    def subsection(cls, name: str, data: Mapping[str, Json]) -> SectionType | None:
        """What a schedule takes follows from its type."""
        return (
            KWARGS.get(str(data.get("lr_scheduler_type", "linear")).lower()) if name == "lr_scheduler_kwargs" else None
        )

    @classmethod
    def rewrite(cls, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """A schedule that needs keyword arguments misses them even where there are none."""
        kwargs = data.get("lr_scheduler_kwargs")
        return {**data, "lr_scheduler_kwargs": {} if kwargs is None else kwargs}

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Rules across arguments, and no "auto": this is where it is filled from."""
        open_names = [name for name, value in values.items() if is_auto(value)]
        yield from ((name, 'must be a value: "auto" belongs into the DeepSpeed part') for name in open_names)
        if values.get("fp16") and values.get("bf16"):
            yield "fp16", "and `bf16` are both true; choose one"

    @property
    def schedule_kwargs(self) -> Section:
        """The keyword arguments of `lr_scheduler_type`, as its section of `jzero.config.schema.hf_schedules`."""
        given = self.lr_scheduler_kwargs
        schema = KWARGS[self.lr_scheduler_type]
        return given if isinstance(given, Section) else build(schema, given or {}, file="lr_scheduler_kwargs")

    def warmup_updates(self, num_training_steps: int) -> int:
        """Updates of the warm-up: `warmup_steps`, or `warmup_ratio` of the whole, rounded up."""
        return self.warmup_steps or math.ceil(num_training_steps * self.warmup_ratio)
