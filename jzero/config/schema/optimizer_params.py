"""`optimizer.params` of each type: torch's and DeepSpeed's names and defaults. `jzero.optim` has the formulas."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from pydantic import PlainValidator

from jzero.base.types import Json
from jzero.config.schema.scalars import Betas, Fraction, NonNegative, Switch, choice, shown
from jzero.config.schema.section import Section
from jzero.config.schema.verdicts import honoured, no_effect, refused

FUSED = "XLA fuses the update"
_DECOUPLED = "decoupled from the gradient: p shrinks by lr * weight_decay"
_COUPLED = "added to the gradient (L2)"
_EPS = "added to the root of the second moment"


def _ordered(value: Json) -> Json:
    """Two numbers, each at least 0, the smaller one first."""
    numbers = isinstance(value, list | tuple) and len(value) == 2 and all(type(v) in (int, float) for v in value)
    if not numbers or not 0 <= value[0] <= value[1]:
        raise ValueError(f"must be a list of two numbers at least 0, the smaller one first, got {shown(value)}")
    return float(value[0]), float(value[1])


Ordered = Annotated[tuple[float, float], PlainValidator(_ordered)]


class _Common(Section):
    cycled: ClassVar[str | None] = None
    """What a schedule that cycles the momentum changes: `betas`, `momentum`, or nothing."""

    lr: NonNegative = honoured(1e-3, "learning rate; the scheduler's base")
    max_grad_norm: NonNegative = refused(0.0, "clipping is the top-level key `gradient_clipping`")
    fused: Switch = no_effect(True, FUSED)
    foreach: Switch = no_effect(False, FUSED)
    capturable: Switch = no_effect(False, FUSED)
    differentiable: Switch = no_effect(False, "optax transformations are differentiable")
    set_grad_none: Switch = no_effect(True, "gradients do not outlive a step")
    maximize: Switch = refused(False, "return the negative of the loss instead")


class AdamParams(_Common):
    """`optimizer.params` of Adam and AdamW."""

    cycled = "betas"
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: NonNegative = honoured(1e-8, _EPS)
    weight_decay: NonNegative | None = honoured(None, "0, or torch's 0.01 with torch_adam and decoupled decay")
    adam_w_mode: Switch = honoured(True, "type Adam: decoupled weight decay; false for L2 regularisation")
    torch_adam: Switch = honoured(False, "only changes the default weight decay")
    bias_correction: Switch = honoured(True, "false takes both moments as they are, biased towards their start at zero")
    amsgrad: Switch = refused(False, "DeepSpeed does not have it either; pass optax.amsgrad as the optimizer")
    fp32_optimizer_states: Switch = no_effect(True, "moments are always fp32")


class LambParams(_Common):
    """`optimizer.params` of Lamb."""

    cycled = "betas"
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: NonNegative = honoured(1e-8, _EPS)
    eps_inside_sqrt: Switch = honoured(False, "adds eps to the second moment, under the root")
    weight_decay: NonNegative = honoured(0.0, "part of the update whose norm is compared with the parameter's")
    bias_correction: Switch = honoured(True, "DeepSpeed's: one factor on the whole update, weight decay included")
    max_coeff: NonNegative = honoured(10.0, "largest ratio of the parameter's norm to the update's")
    min_coeff: NonNegative = honoured(0.01, "smallest such ratio")
    amsgrad: Switch = refused(False, "DeepSpeed does not have it either; use Adam, or pass optax.amsgrad")

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """The bounds of the ratio are in order."""
        low, high = values.get("min_coeff", 0.01), values.get("max_coeff", 10.0)
        if low > high:
            yield "min_coeff", f"= {low} is above max_coeff = {high}"


class SGDParams(_Common):
    """`optimizer.params` of SGD."""

    cycled = "momentum"
    momentum: NonNegative = honoured(0.0, "decay of the sum of updates")
    weight_decay: NonNegative = honoured(0.0, _COUPLED)
    nesterov: Switch = honoured(False, "looks one step of the momentum ahead")
    dampening: NonNegative = honoured(
        0.0, "from the second update on, gradients enter the momentum times 1 - dampening"
    )

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """As torch: Nesterov needs momentum and no dampening."""
        if values.get("nesterov") is True and not values.get("momentum"):
            yield "nesterov", "needs a `momentum` above 0"
        if values.get("nesterov") is True and values.get("dampening"):
            yield "nesterov", "needs a `dampening` of 0"


class LionParams(_Common):
    """`optimizer.params` of Lion."""

    cycled = "betas"
    betas: Betas = honoured((0.9, 0.99), "weights of the momentum in the update, and in the next momentum")
    weight_decay: NonNegative = honoured(0.0, _DECOUPLED)


class AdagradParams(_Common):
    """`optimizer.params` of Adagrad."""

    lr: NonNegative = honoured(1e-2, "learning rate; the scheduler's base")
    lr_decay: NonNegative = honoured(0.0, "update k (from 0) has the rate over 1 + k * lr_decay")
    weight_decay: NonNegative = honoured(0.0, _COUPLED)
    initial_accumulator_value: NonNegative = honoured(0.0, "what the sums of squares start from")
    eps: NonNegative = honoured(1e-10, "added to the root of the sum of squares")
    amsgrad: Switch = refused(False, "Adagrad has no such variant; remove the key")
    fp32_optimizer_states: Switch = no_effect(True, "sums of squares are always fp32")


class MuonParams(_Common):
    """`optimizer.params` of Muon."""

    lr: NonNegative = honoured(0.02, "of both parts; 3e-4 for Adam's part when it is not given")
    muon_lr: NonNegative | None = honoured(
        None,
        "of the hidden matrices, which are what has two dimensions or more and neither `embed` nor `lm_head` in its "
        "name, nor a part called wte, wpe, positions or head; `lr` when not given",
    )
    adam_lr: NonNegative | None = honoured(None, "of all other parameters; `lr` when not given")
    momentum: Fraction = honoured(0.95, "of the matrices' averaged gradients, with Nesterov's look ahead")
    weight_decay: NonNegative = honoured(0.0, f"of both parts; {_DECOUPLED}")
    betas: Betas = honoured((0.9, 0.95), "of Adam's part")
    eps: NonNegative = honoured(1e-10, "of Adam's part")
    ns_method: Annotated[str, choice("gram", "standard")] = no_effect(
        "gram", "both give the same matrix; XLA runs the standard iteration, in fp32"
    )
    per_head_muon: Switch = refused(False, "this version orthogonalises whole matrices; remove the key")


class RMSpropParams(_Common):
    """`optimizer.params` of RMSprop."""

    cycled = "momentum"
    lr: NonNegative = honoured(1e-2, "learning rate; the scheduler's base")
    alpha: Fraction = honoured(0.99, "of the running mean of squares")
    eps: NonNegative = honoured(1e-8, "added to its root")
    weight_decay: NonNegative = honoured(0.0, _COUPLED)
    momentum: NonNegative = honoured(0.0, "decay of the sum of updates")
    centered: Switch = honoured(False, "divides by the standard deviation in place of the root mean square")


class AdadeltaParams(_Common):
    """`optimizer.params` of Adadelta."""

    lr: NonNegative = honoured(1.0, "learning rate; the scheduler's base")
    rho: Fraction = honoured(0.9, "of both running means of squares")
    eps: NonNegative = honoured(1e-6, "added to both under the root")
    weight_decay: NonNegative = honoured(0.0, _COUPLED)


class NAdamParams(_Common):
    """`optimizer.params` of NAdam."""

    cycled = "betas"
    lr: NonNegative = honoured(2e-3, "learning rate; the scheduler's base")
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: NonNegative = honoured(1e-8, _EPS)
    weight_decay: NonNegative = honoured(0.0, _COUPLED)
    momentum_decay: NonNegative = honoured(4e-3, "how fast the momentum rises to betas[0]")
    decoupled_weight_decay: Switch = honoured(False, "true makes it NAdamW")


class RAdamParams(_Common):
    """`optimizer.params` of RAdam."""

    cycled = "betas"
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: NonNegative = honoured(1e-8, _EPS)
    weight_decay: NonNegative = honoured(0.0, _COUPLED)
    decoupled_weight_decay: Switch = honoured(False, "true decouples the weight decay, as in AdamW")


class AdamaxParams(_Common):
    """`optimizer.params` of Adamax."""

    cycled = "betas"
    lr: NonNegative = honoured(2e-3, "learning rate; the scheduler's base")
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: NonNegative = honoured(1e-8, "added to the size of each gradient")
    weight_decay: NonNegative = honoured(0.0, _COUPLED)


class RpropParams(_Common):
    """`optimizer.params` of Rprop."""

    lr: NonNegative = honoured(1e-2, "the first step size of every element; later rates of a schedule are not read")
    etas: Ordered = honoured((0.5, 1.2), "factors on a step size where the gradient turns, and where not")
    step_sizes: Ordered = honoured((1e-6, 50.0), "smallest and largest step size")
