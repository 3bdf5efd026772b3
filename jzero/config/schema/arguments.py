"""`training_arguments`: the Hugging Face names that a run file may use, with Hugging Face's defaults."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import PlainValidator

from jzero.base.types import Json
from jzero.config.schema.building import build
from jzero.config.schema.foreign_arguments import FOREIGN
from jzero.config.schema.hf_schedules import KWARGS, LrSchedulerType
from jzero.config.schema.scalars import (
    LARGEST_32,
    Anything,
    Decay,
    Fraction,
    NonNegative,
    Positive,
    Positive32,
    Rate,
    Switch,
    Text,
    choice,
    is_auto,
    real,
    shown,
    whole,
)
from jzero.config.schema.section import Section, SectionType
from jzero.config.schema.verdicts import honoured, refused, verdict

_OPTIMIZER = "another optimizer, and what it takes, is the section `optimizer` of the part `deepspeed`"

Strategy = Annotated[str, choice("no", "steps", "epoch")]
_ADAMW = ("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_npu_fused")
Optimizers = Annotated[str, choice("adamw", **dict.fromkeys(_ADAMW, "adamw"))]


def _warmup(value: Json) -> Json:
    """Steps, or a share of them."""
    if is_auto(value):
        return value
    number = real(0, LARGEST_32).func(value)  # type: ignore[call-arg]
    if number >= 1 and number != int(number):
        raise ValueError(f"must be a whole number of steps, or a share below 1, got {shown(value)}")
    return number if number and number < 1 else int(number)


def _trackers(value: Json) -> Json:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(name in ("none", "all", "tensorboard") for name in names):
        raise ValueError(
            f"must be tensorboard, all or none, got {shown(value)}; metrics.jsonl has every figure, for other programs"
        )
    return ("tensorboard",) if {"all", "tensorboard"} & set(names) else ()


def _text_or_switch(value: Json) -> Json:
    if not isinstance(value, bool | str):
        raise ValueError(f"must be a path, true or false, got {shown(value)}")
    return {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value


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
    warmup_steps: Annotated[float, PlainValidator(_warmup)] = honoured(0, "below 1, a share of all steps")
    weight_decay: Rate = 0.0
    adam_beta1: Decay = 0.9
    adam_beta2: Decay = 0.999
    adam_epsilon: Rate = 1e-8
    max_grad_norm: NonNegative = 1.0
    optim: Optimizers = honoured("adamw", "AdamW, under any of its names")
    fp16: Switch = False
    bf16: Switch = False
    seed: Annotated[int, whole(0, 2**32 - 1)] = 42
    logging_steps: Positive = 500
    logging_strategy: Strategy = honoured("steps", "when the console shows a lasting line")
    logging_first_step: Switch = honoured(False, "a lasting line for the first step too")
    logging_dir: Text | None = honoured(None, "where `report_to` writes; `tensorboard` in `output_dir` by default")
    report_to: Annotated[tuple[str, ...], PlainValidator(_trackers)] = honoured(
        (), "`tensorboard` (or `all`); metrics.jsonl is always written"
    )
    eval_strategy: Strategy | None = honoured(
        None, "when to evaluate; where it is not given, every `eval_steps` if there are any"
    )
    eval_steps: Positive | None = None
    save_strategy: Strategy = honoured("steps", "when to save; the end of a run is saved in any case")
    save_steps: Positive = 500
    save_total_limit: Positive | None = None
    early_stopping_patience: Positive | None = honoured(
        None, "stop after so many evaluations without a lower validation loss"
    )
    early_stopping_threshold: NonNegative = honoured(0.0, "by how much it must be lower")
    resume_from_checkpoint: Annotated[str | bool, PlainValidator(_text_or_switch)] | None = honoured(
        None, "as `--resume`; true: the newest in `output_dir`"
    )
    gradient_checkpointing: Switch = honoured(False, "`remat` of the model, where that is not given")
    ddp_timeout: Positive = 1800
    group_by_length: Switch = refused(False, 'rows are of one length; `data.packing` "best_fit" leaves little padding')
    train_sampling_strategy: Annotated[str, choice("random", "sequential", "group_by_length")] = refused(
        "random", "every epoch has its own random order, of which a batch's index and `seed` decide"
    )
    label_smoothing_factor: Fraction = refused(0.0, "the loss of `jzero train` has none; write a loss of your own")
    neftune_noise_alpha: NonNegative | None = refused(None, "the models of `jzero train` add no noise to embeddings")
    load_best_model_at_end: Switch = refused(
        False, "the last state stays; metrics.jsonl says which checkpoint was best, for `--weights` or `jzero export`"
    )
    metric_for_best_model: Annotated[str, choice("loss", eval_loss="loss")] = honoured(
        "loss", "the validation loss, which is what there is"
    )
    greater_is_better: Switch = refused(False, "a lower validation loss is better")
    auto_find_batch_size: Switch = refused(False, "`jzero plan --max-batch` finds it before the run")
    overwrite_output_dir: Switch = refused(False, "give `--overwrite` on the command line, where it is seen")
    save_only_model: Switch = refused(False, "a checkpoint must be one to go on from; `jzero export` writes weights")
    ignore_data_skip: Switch = refused(False, "finding the place in the data takes no time")
    restore_callback_states_from_checkpoint: Switch = refused(False, "there are no callbacks")
    push_to_hub: Switch = refused(False, "nothing is pushed to a hub; `jzero export` writes the weights")
    eval_on_start: Switch = refused(False, "a run begins with a step")
    eval_delay: NonNegative = refused(0.0, "evaluations begin with the first that is due")
    adafactor: Switch = refused(False, _OPTIMIZER)
    optim_args: Anything = refused(None, _OPTIMIZER)
    optim_target_modules: Anything = refused(None, _OPTIMIZER)
    deepspeed: Anything = refused(None, "it is the part `deepspeed` of the run file")
    fsdp: Anything = refused(None, "ZeRO stage 3 of the part `deepspeed` does it")
    fsdp_min_num_params: Anything = refused(0, "ZeRO stage 3 of the part `deepspeed` does it")
    fsdp_transformer_layer_cls_to_wrap: Anything = refused(None, "ZeRO stage 3 of the part `deepspeed` does it")
    fsdp_config: Anything = refused(None, "ZeRO stage 3 of the part `deepspeed` does it")
    parallelism_config: Anything = refused(None, "devices are laid out by the part `deepspeed`")

    aliases: ClassVar[Mapping[str, str]] = {
        "activation_checkpointing": "gradient_checkpointing",
        "evaluation_strategy": "eval_strategy",
        "per_gpu_train_batch_size": "per_device_train_batch_size",
    }
    foreign: ClassVar[Mapping[str, str]] = FOREIGN

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
        for name, value in values.items():
            own = verdict(cls.model_fields[name])
            if (
                own.kind == "refused"
                and not is_auto(value)
                and value not in (cls.model_fields[name].default, "", [], {})
            ):
                yield name, f"= {shown(value)} is refused: {own.reason}"
        if values.get("early_stopping_patience") and not (values.get("eval_steps") or values.get("eval_strategy")):
            yield "early_stopping_patience", "needs evaluations: give `eval_steps`, or `eval_strategy`"

    @property
    def schedule_kwargs(self) -> Section:
        """The keyword arguments of `lr_scheduler_type`, as its section of `jzero.config.schema.hf_schedules`."""
        given = self.lr_scheduler_kwargs
        schema = KWARGS[self.lr_scheduler_type]
        return given if isinstance(given, Section) else build(schema, given or {}, file="lr_scheduler_kwargs")

    def warmup_updates(self, num_training_steps: int) -> int:
        """Updates of the warm-up: `warmup_steps`, or `warmup_ratio` of the whole, rounded up.

        Example:
            >>> [TrainingArguments(warmup_steps=n).warmup_updates(200) for n in (0.05, 5)]
            [10, 5]
        """
        share = self.warmup_ratio if not self.warmup_steps else self.warmup_steps if self.warmup_steps < 1 else None
        return int(self.warmup_steps) if share is None else math.ceil(num_training_steps * share)

    def with_steps(self, steps_per_epoch: int) -> "TrainingArguments":
        """These arguments with every strategy said in steps.

        Args:
            steps_per_epoch: of this run.

        Example:
            >>> TrainingArguments(eval_strategy="epoch", save_strategy="no").with_steps(40).eval_steps
            40
        """
        epoch, never = max(1, steps_per_epoch), LARGEST_32
        often = self.eval_steps or self.logging_steps
        evaluations = {"no": None, "epoch": epoch, "steps": often, None: self.eval_steps}
        saves = {"no": never, "epoch": epoch, "steps": self.save_steps}
        steps = {"eval_steps": evaluations[self.eval_strategy], "save_steps": saves[self.save_strategy]}
        if self.logging_strategy != "steps":
            steps["logging_steps"] = never if self.logging_strategy == "no" else epoch
        return self.model_copy(update=steps)
