"""`optimizer.params` of each type: torch's and DeepSpeed's names and defaults. `jzero.optim` has the formulas."""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from jzero.base.types import Json
from jzero.config.schema.rates import RATES
from jzero.config.schema.scalars import Ascending, Betas, Decay, NonNegative, Rate, Switch, choice
from jzero.config.schema.section import Order, Section
from jzero.config.schema.verdicts import Usual, honoured, no_effect, refused

FUSED = "XLA fuses the update"
_DECOUPLED = "decoupled from the gradient: p shrinks by lr * weight_decay"
_COUPLED = "added to the gradient (L2)"
_EPS = "added to the root of the second moment"

EPSILONS = Usual(1e-30, 1, "below, 0 is divided by 0 where a gradient is 0; above, it decides the size of the updates")


class _Common(Section):
    cycled: ClassVar[str | None] = None
    """What a schedule that cycles the momentum changes: `betas`, `momentum`, or nothing."""

    synonyms: ClassVar[Mapping[str, str]] = {
        "learning_rate": "lr",
        "epsilon": "eps",
        "adam_epsilon": "eps",
        "beta": "betas",
        "wd": "weight_decay",
    }

    lr: Rate = honoured(1e-3, "learning rate; the scheduler's base", usual=RATES)
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
    eps: Rate = honoured(1e-8, _EPS, usual=EPSILONS)
    weight_decay: Rate | None = honoured(None, "0, or torch's 0.01 with torch_adam and decoupled decay")
    adam_w_mode: Switch = honoured(True, "type Adam: decoupled weight decay; false for L2 regularisation")
    torch_adam: Switch = honoured(False, "only changes the default weight decay")
    bias_correction: Switch = honoured(True, "false takes both moments as they are, biased towards their start at zero")
    amsgrad: Switch = refused(False, "DeepSpeed does not have it either; pass optax.amsgrad as the optimizer")
    fp32_optimizer_states: Switch = no_effect(True, "moments are always fp32")


class LambParams(_Common):
    """`optimizer.params` of Lamb."""

    cycled = "betas"
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: Rate = honoured(1e-8, _EPS, usual=EPSILONS)
    eps_inside_sqrt: Switch = honoured(False, "adds eps to the second moment, under the root")
    weight_decay: Rate = honoured(0.0, "part of the update whose norm is compared with the parameter's")
    bias_correction: Switch = honoured(True, "DeepSpeed's: one factor on the whole update, weight decay included")
    max_coeff: Rate = honoured(10.0, "largest ratio of the parameter's norm to the update's")
    min_coeff: Rate = honoured(0.01, "smallest such ratio")
    amsgrad: Switch = refused(False, "DeepSpeed does not have it either; use Adam, or pass optax.amsgrad")

    in_order = (Order("min_coeff", "max_coeff"),)


class SGDParams(_Common):
    """`optimizer.params` of SGD."""

    cycled = "momentum"
    momentum: Decay = honoured(0.0, "decay of the sum of updates")
    weight_decay: Rate = honoured(0.0, _COUPLED)
    nesterov: Switch = honoured(False, "looks one step of the momentum ahead")
    dampening: Decay = honoured(0.0, "from the second update on, gradients enter the momentum times 1 - dampening")

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
    weight_decay: Rate = honoured(0.0, _DECOUPLED)


class AdagradParams(_Common):
    """`optimizer.params` of Adagrad."""

    lr: Rate = honoured(1e-2, "learning rate; the scheduler's base", usual=RATES)
    lr_decay: Rate = honoured(0.0, "update k (from 0) has the rate over 1 + k * lr_decay")
    weight_decay: Rate = honoured(0.0, _COUPLED)
    initial_accumulator_value: NonNegative = honoured(0.0, "what the sums of squares start from")
    eps: Rate = honoured(1e-10, "added to the root of the sum of squares", usual=EPSILONS)
    amsgrad: Switch = refused(False, "Adagrad has no such variant; remove the key")
    fp32_optimizer_states: Switch = no_effect(True, "sums of squares are always fp32")


class MuonParams(_Common):
    """`optimizer.params` of Muon."""

    lr: Rate = honoured(0.02, "of both parts; 3e-4 for Adam's part when it is not given", usual=RATES)
    muon_lr: Rate | None = honoured(
        None,
        "of the hidden matrices, which are what has two dimensions or more and neither `embed` nor `lm_head` in its "
        "name, nor a part called wte, wpe, positions or head; `lr` when not given",
        usual=RATES,
    )
    adam_lr: Rate | None = honoured(None, "of all other parameters; `lr` when not given", usual=RATES)
    momentum: Decay = honoured(0.95, "of the matrices' averaged gradients, with Nesterov's look ahead")
    weight_decay: Rate = honoured(0.0, f"of both parts; {_DECOUPLED}")
    betas: Betas = honoured((0.9, 0.95), "of Adam's part")
    eps: Rate = honoured(1e-10, "of Adam's part", usual=EPSILONS)
    ns_method: Annotated[str, choice("gram", "standard")] = no_effect(
        "gram", "both give the same matrix; XLA runs the standard iteration, in fp32"
    )
    per_head_muon: Switch = refused(False, "this version orthogonalises whole matrices; remove the key")


class RMSpropParams(_Common):
    """`optimizer.params` of RMSprop."""

    cycled = "momentum"
    lr: Rate = honoured(1e-2, "learning rate; the scheduler's base", usual=RATES)
    alpha: Decay = honoured(0.99, "of the running mean of squares")
    eps: Rate = honoured(1e-8, "added to its root", usual=EPSILONS)
    weight_decay: Rate = honoured(0.0, _COUPLED)
    momentum: Decay = honoured(0.0, "decay of the sum of updates")
    centered: Switch = honoured(False, "divides by the standard deviation in place of the root mean square")


class AdadeltaParams(_Common):
    """`optimizer.params` of Adadelta."""

    lr: Rate = honoured(1.0, "learning rate; the scheduler's base", usual=RATES)
    rho: Decay = honoured(0.9, "of both running means of squares")
    eps: Rate = honoured(1e-6, "added to both under the root", usual=EPSILONS)
    weight_decay: Rate = honoured(0.0, _COUPLED)


class NAdamParams(_Common):
    """`optimizer.params` of NAdam."""

    cycled = "betas"
    lr: Rate = honoured(2e-3, "learning rate; the scheduler's base", usual=RATES)
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: Rate = honoured(1e-8, _EPS, usual=EPSILONS)
    weight_decay: Rate = honoured(0.0, _COUPLED)
    momentum_decay: Rate = honoured(4e-3, "how fast the momentum rises to betas[0]")
    decoupled_weight_decay: Switch = honoured(False, "true makes it NAdamW")


class RAdamParams(_Common):
    """`optimizer.params` of RAdam."""

    cycled = "betas"
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: Rate = honoured(1e-8, _EPS, usual=EPSILONS)
    weight_decay: Rate = honoured(0.0, _COUPLED)
    decoupled_weight_decay: Switch = honoured(False, "true decouples the weight decay, as in AdamW")


class AdamaxParams(_Common):
    """`optimizer.params` of Adamax."""

    cycled = "betas"
    lr: Rate = honoured(2e-3, "learning rate; the scheduler's base", usual=RATES)
    betas: Betas = honoured((0.9, 0.999), "decay of the two moments")
    eps: Rate = honoured(1e-8, "added to the size of each gradient", usual=EPSILONS)
    weight_decay: Rate = honoured(0.0, _COUPLED)


class RpropParams(_Common):
    """`optimizer.params` of Rprop."""

    lr: Rate = honoured(
        1e-2, "the first step size of every element; later rates of a schedule are not read", usual=RATES
    )
    etas: Ascending = honoured((0.5, 1.2), "factors on a step size where the gradient turns, and where not")
    step_sizes: Ascending = honoured((1e-6, 50.0), "smallest and largest step size")

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """As torch: a step size shrinks where the gradient turns, and grows where not."""
        shrinks, grows = values.get("etas", (0.5, 1.2))
        if not 0 < shrinks < 1 < grows:
            yield "etas", f"must be a number between 0 and 1 and one above 1, got [{shrinks:g}, {grows:g}]"
