"""`fp16`, `bf16` and the other sections about number formats."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from jzero.config.scalars import Anything, Count, DType, NonNegative, Positive, Switch, Text, Texts, whole
from jzero.config.section import Section
from jzero.config.verdicts import honoured, no_effect, refused

_FP32_MASTER = "the master copy, gradients and moments are kept in fp32; remove the key"


class Fp16(Section):
    """`fp16`: compute in half precision with a scaled loss."""

    enabled: Switch = honoured(False, "compute in fp16")
    loss_scale: NonNegative = honoured(0.0, "0 scales dynamically, any other number is the scale")
    # 2**127 is the largest power that fp32 holds.
    initial_scale_power: Annotated[int, whole(0, 127)] = honoured(16, "the dynamic scale starts at 2 to this power")
    loss_scale_window: Positive = honoured(1000, "good steps between two doublings of the scale")
    hysteresis: Positive = honoured(2, "overflows that are let pass before the scale is halved")
    consecutive_hysteresis: Switch = honoured(False, "a good step restores the hysteresis")
    min_loss_scale: Count = honoured(1, "training stops when an overflow asks for less than this")
    auto_cast: Switch = no_effect(False, "floating-point inputs are left to the model, which casts them as it needs")
    fp16_master_weights_and_grads: Switch = refused(False, _FP32_MASTER)

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """A dynamic scale needs a floor above zero."""
        if values.get("enabled") is True and values.get("loss_scale", 0) == 0 and values.get("min_loss_scale") == 0:
            yield "min_loss_scale", "must be at least 1 when the loss scale is dynamic, got 0"


class Bf16(Section):
    """`bf16`: compute in bfloat16, unscaled."""

    enabled: Switch = honoured(False, "compute in bf16")
    immediate_grad_update: Switch = no_effect(False, "gradients are accumulated inside the compiled step")
    check_grad_overflow: Switch = no_effect(True, "gradients that are not finite skip the step in every dtype")
    bf16_master_weights_and_grads: Switch = refused(False, _FP32_MASTER)
    bf16_optimizer_states: Switch = refused(False, _FP32_MASTER)


class Amp(Section):
    """`amp`: NVIDIA Apex, with the arguments of its `amp.initialize`."""

    enabled: Switch = False
    opt_level: Text = "O1"
    cast_model_type: Anything = None
    patch_torch_functions: Anything = None
    keep_batchnorm_fp32: Anything = None
    master_weights: Anything = None
    loss_scale: Anything = None
    cast_model_outputs: Anything = None
    num_losses: Count = 1
    verbosity: Count = 1
    min_loss_scale: Anything = None
    max_loss_scale: Anything = None


class TorchAutocast(Section):
    """`torch_autocast`."""

    enabled: Switch = False
    dtype: Text | None = None
    lower_precision_safe_modules: Texts | None = None


class DataTypes(Section):
    """`data_types`."""

    grad_accum_dtype: DType | None = honoured(None, "gradients are accumulated in fp32, also when nothing is said")
    param_dtype: Anything = refused(None, "fp16.enabled and bf16.enabled choose the compute dtype; remove the key")
    buffer_dtype: Anything = refused(None, "buffers keep the dtype that the model gives them; remove the key")

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Low-precision accumulation is not offered."""
        if values.get("grad_accum_dtype") in ("fp16", "bf16"):
            yield "grad_accum_dtype", "is refused: gradients are accumulated in fp32; remove the key"
