"""`fp16`, `bf16` and the other sections about number formats."""

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from jzero.base.types import Json
from jzero.config.schema.scalars import Anything, Count, Count32, DType, Switch, Text, Texts, is_auto, real, whole
from jzero.config.schema.section import Mapped, Section
from jzero.config.schema.verdicts import Usual, honoured, no_effect, translated

LARGEST_SCALE = 2.0**127
"""The largest power of two that fp32 holds."""

SMALLEST_SCALE = 1.2e-38
"""Just above the smallest number that fp32 holds with all its digits."""

Scale = Annotated[float, real(0, 1.7e38)]
"""Up to just below the largest."""

_STATIC = Usual(1, 65504, "fp16 ends at 65504: a scaled gradient overflows, and no overflow lowers a static scale")
_STARTS = Usual(0, 32, "each halving on the way down to a scale that fits costs a step, which is skipped")
DYNAMIC = ("initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale")
"""Keys of `fp16` that only a dynamic loss scale reads."""

_MASTER = "parameters last in {0} too, without an fp32 copy, and gradients are accumulated in {0}"


class Fp16(Section):
    """`fp16`: compute in half precision with a scaled loss."""

    enabled: Switch = honoured(False, "compute in fp16")
    loss_scale: Scale = honoured(0.0, "0 scales dynamically, any other number is the scale", usual=_STATIC)
    initial_scale_power: Annotated[int, whole(0, 127)] = honoured(
        16, "the dynamic scale starts at 2 to this power", usual=_STARTS
    )
    loss_scale_window: Count32 = honoured(1000, "good steps between two doublings of the scale")
    hysteresis: Count32 = honoured(2, "overflows that are let pass before the scale is halved")
    consecutive_hysteresis: Switch = honoured(False, "a good step restores the hysteresis")
    min_loss_scale: Scale = honoured(1.0, "training stops when an overflow asks for less than this; fractions count")
    auto_cast: Switch = no_effect(
        False, "floating-point inputs are cast to fp16 in any case: one fp32 input would promote the whole model"
    )
    fp16_master_weights_and_grads: Switch = honoured(False, _MASTER.format("fp16"))

    synonyms: ClassVar[Mapping[str, str]] = {"initial_loss_scale": "initial_scale_power"}
    needless: ClassVar[Mapping[str, str]] = {"opt_level": "only Apex has levels, in its section `amp`"}

    @classmethod
    def modernise(cls, data: dict[str, Json]) -> Iterator[Mapped]:
        """A first scale that is a power of two may be written as it is."""
        scale = data.get("initial_loss_scale")
        if isinstance(scale, int | float) and scale >= 1 and "initial_scale_power" not in data:
            mantissa, exponent = math.frexp(scale)
            if mantissa == 0.5:
                data["initial_scale_power"] = exponent - 1
                yield Mapped("initial_scale_power", exponent - 1, "initial_loss_scale", data.pop("initial_loss_scale"))

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """A dynamic scale needs a floor that it can stand on."""
        smallest, dynamic = values.get("min_loss_scale", 1.0), values.get("loss_scale", 0) == 0
        if values.get("enabled") is True and dynamic and not is_auto(smallest) and smallest < SMALLEST_SCALE:
            wanted = "must be a number above 0 that fp32 holds when the loss scale is dynamic"
            yield "min_loss_scale", f"{wanted}, got {smallest:g}; 1 is usual"
        first = 2.0**power if not is_auto(power := values.get("initial_scale_power", 16)) else math.inf
        if values.get("enabled") is True and dynamic and not is_auto(smallest) and smallest > first:
            wrong = f"= {smallest:g} is above the first scale, {first:g}: an overflow would raise the scale; lower it"
            yield "min_loss_scale", f"{wrong}, or set `initial_scale_power` to {math.ceil(math.log2(smallest))}"
        for name in ("loss_scale_window", "hysteresis"):
            if values.get("enabled") is True and dynamic and values.get(name, 1) == 0:
                yield name, "must be a whole number at least 1 when the loss scale is dynamic, got 0"


class Bf16(Section):
    """`bf16`: compute in bfloat16, unscaled."""

    enabled: Switch = honoured(False, "compute in bf16")
    immediate_grad_update: Switch = no_effect(False, "gradients are accumulated inside the compiled step")
    check_grad_overflow: Switch = no_effect(True, "gradients that are not finite skip the step in every dtype")
    bf16_master_weights_and_grads: Switch = honoured(False, _MASTER.format("bf16"))
    bf16_optimizer_states: Switch = honoured(False, "the optimizer's moments last in bf16; the update is made in fp32")

    needless: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("loss_scale", *DYNAMIC), "bf16 has the range of fp32, and its loss is not scaled"),
        "auto_cast": "floating-point inputs are cast to bf16 in any case",
    }

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Moments follow the parameters they belong to."""
        if values.get("bf16_optimizer_states") is True and not values.get("bf16_master_weights_and_grads"):
            yield "bf16_optimizer_states", "needs `bf16.bf16_master_weights_and_grads` to be true as well"


class Amp(Section):
    """`amp`: NVIDIA Apex, with the arguments of its `amp.initialize`."""

    enabled: Switch = translated(False, "`fp16.enabled`")
    opt_level: Text = translated("O1", "O0 is fp32, the others are fp16")
    loss_scale: Anything = translated(None, "`fp16.loss_scale`; dynamic when not given")
    min_loss_scale: Anything = translated(None, "`fp16.min_loss_scale`")
    max_loss_scale: Anything = translated(None, "`jzero.max_loss_scale`; 2**24 when not given, as in Apex")
    cast_model_type: Anything = no_effect(None, "the model computes in fp16")
    patch_torch_functions: Anything = no_effect(None, "there are no functions of torch")
    keep_batchnorm_fp32: Anything = no_effect(None, "`jzero.keep_fp32` names what stays fp32")
    master_weights: Anything = no_effect(None, "a master copy is kept in any case")
    cast_model_outputs: Anything = no_effect(None, "the loss function casts what it needs")
    num_losses: Count = no_effect(1, "there is one loss")
    verbosity: Count = no_effect(1, "jzero logs through Python's logging")


class TorchAutocast(Section):
    """`torch_autocast`."""

    enabled: Switch = translated(False, "`bf16.enabled` or `fp16.enabled`")
    dtype: Text | None = translated(None, "which of the two; fp16 when not given")
    lower_precision_safe_modules: Texts | None = no_effect(
        None, "the whole model computes in 16 bits but for what `jzero.keep_fp32` names"
    )


class DataTypes(Section):
    """`data_types`."""

    grad_accum_dtype: DType | None = honoured(
        None, "gradients are added up over micro-batches in this; in fp32 when not given, in the model's in DeepSpeed"
    )
    param_dtype: DType | None = honoured(None, "must say what `fp16.enabled` and `bf16.enabled` choose")
    buffer_dtype: DType | None = honoured(None, "the model's state, such as BatchNorm statistics, lasts in this")


def disagreements(values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Rules about number formats that hold between sections: yields (key, what is wrong with it).

    Args:
        values: the sections that the configuration gives, by name.
    """
    fp16, bf16 = values.get("fp16", Fp16()), values.get("bf16", Bf16())
    if fp16.enabled is True and bf16.enabled is True:
        yield "fp16.enabled", "and `bf16.enabled` are both true; switch one of them off"
    types, zero, own = values.get("data_types"), values.get("zero_optimization"), values.get("jzero")
    undecided = any(map(is_auto, (fp16.enabled, bf16.enabled, types and types.param_dtype)))
    if types and types.param_dtype and not undecided:
        chosen = "fp16" if fp16.enabled else "bf16" if bf16.enabled else "fp32"
        if types.param_dtype != chosen:
            advice = "remove it" if types.param_dtype == "fp32" else f"set `{types.param_dtype}.enabled` to true"
            yield "data_types.param_dtype", f"is {types.param_dtype}, but the switches choose {chosen}; {advice}"
    if not (zero and zero.stage):
        for name, section in (("fp16", fp16), ("bf16", bf16)):
            key = f"{name}_master_weights_and_grads"
            if section.enabled is True and getattr(section, key) is True:
                yield f"{name}.{key}", "needs `zero_optimization.stage` 1, 2 or 3"
    largest, smallest = own and own.max_loss_scale, fp16.min_loss_scale
    if largest is not None and not is_auto(largest) and not is_auto(smallest) and largest < smallest:
        yield "jzero.max_loss_scale", f"is {largest:g}, below the `fp16.min_loss_scale` of {smallest:g}; raise it"
