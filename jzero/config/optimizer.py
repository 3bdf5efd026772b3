"""`optimizer`: the types that jzero builds, their parameters, and what to use instead of the others."""

from collections.abc import Iterator, Mapping
from typing import Any

from jzero.config.scalars import Anything, Betas, NonNegative, Switch, Text
from jzero.config.section import Section, SectionType
from jzero.config.verdicts import honoured, no_effect, refused

_FUSED = "XLA fuses the update"


class _Common(Section):
    lr: NonNegative = honoured(1e-3, "learning rate; the scheduler's base")
    max_grad_norm: NonNegative = refused(0.0, "clipping is the top-level key `gradient_clipping`")
    fused: Switch = no_effect(True, _FUSED)
    foreach: Switch = no_effect(False, _FUSED)
    capturable: Switch = no_effect(False, _FUSED)
    differentiable: Switch = no_effect(False, "optax transformations are differentiable")
    set_grad_none: Switch = no_effect(True, "gradients do not outlive a step")
    maximize: Switch = refused(False, "return the negative of the loss instead")


class AdamParams(_Common):
    """`optimizer.params` of Adam and AdamW."""

    betas: Betas = honoured((0.9, 0.999))
    eps: NonNegative = honoured(1e-8, "added to the root of the second moment")
    weight_decay: NonNegative | None = honoured(None, "0, or torch's 0.01 with torch_adam and decoupled decay")
    adam_w_mode: Switch = honoured(True, "type Adam: decoupled weight decay; false for L2 regularisation")
    torch_adam: Switch = honoured(False, "only changes the default weight decay")
    bias_correction: Switch = refused(True, "pass an optax optimizer without bias correction instead")
    amsgrad: Switch = refused(False, "DeepSpeed does not have it either; pass optax.amsgrad as the optimizer")
    fp32_optimizer_states: Switch = no_effect(True, "moments are always fp32")


class SGDParams(_Common):
    """`optimizer.params` of SGD."""

    momentum: NonNegative = honoured(0.0)
    weight_decay: NonNegative = honoured(0.0, "added to the gradient (L2)")
    nesterov: Switch = honoured(False)
    dampening: NonNegative = refused(0.0, "optax's SGD has no dampening")

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """As torch: Nesterov needs momentum."""
        if values.get("nesterov") is True and not values.get("momentum"):
            yield "nesterov", "needs a `momentum` above 0"


class LionParams(_Common):
    """`optimizer.params` of Lion."""

    betas: Betas = honoured((0.9, 0.99))
    weight_decay: NonNegative = honoured(0.0)


PARAMS: dict[str, SectionType] = {"adam": AdamParams, "adamw": AdamParams, "sgd": SGDParams, "lion": LionParams}

INSTEAD: dict[str, str] = {
    "onebitadam": "AdamW",
    "zerooneadam": "AdamW",
    "onebitlamb": "AdamW",
    "lamb": "AdamW, or pass optax.lamb to jzero.initialize",
    "adagrad": "AdamW, or pass optax.adagrad to jzero.initialize",
    "muon": "AdamW, or pass optax.contrib.muon to jzero.initialize",
    "muadam": "AdamW",
    "muadamw": "AdamW",
    "musgd": "SGD",
}


class OptimizerConfig(Section):
    """`optimizer`."""

    type: Text = honoured("AdamW", "Adam (which is AdamW unless adam_w_mode is false), AdamW, SGD or Lion, in any case")
    params: AdamParams | SGDParams | LionParams | Anything = honoured(None)
    legacy_fusion: Switch = no_effect(False, _FUSED)

    @classmethod
    def subsection(cls, name: str, data: Mapping[str, Any]) -> SectionType | None:
        """The parameters' schema follows from the type."""
        return PARAMS.get(str(data.get("type")).lower()) if name == "params" else None

    @classmethod
    def rewrite(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Missing parameters are the defaults of the type."""
        return {**data, "params": data.get("params") or {}}

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Names the types that exist, and the nearest one for those that do not exist here."""
        kind = values.get("type")
        if kind is None:
            yield "type", "is missing: one of Adam, AdamW, SGD, Lion"
        elif kind.lower() not in PARAMS:
            advice = INSTEAD.get(kind.lower(), "Adam, AdamW, SGD or Lion, or pass an optax optimizer to initialize")
            yield "type", f"= {kind!r} is refused: use {advice}"
