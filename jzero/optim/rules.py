"""The update rule of each `optimizer.type`, as a chain of optax transformations.

Two rules hold for all of them. Weight decay goes through `Setting.decay` and the learning rate through `Setting.rate`,
so that parameter groups and schedules reach every type. And betas go through `_moments`, so that a schedule can cycle
the first one.
"""

import inspect
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import KeyPath
from jax.typing import ArrayLike

from jzero.base.types import Params
from jzero.config.schema import optimizer_params as p
from jzero.errors import ConfigError
from jzero.optim import transforms
from jzero.optim.groups import OfName, add_decayed_weights, scale_by_multiplier
from jzero.optim.muon import LoopDims, is_muon_matrix, scale_by_deepspeeds_muon
from jzero.schedules import Momentum
from jzero.sharding.placement import path_name

Transformation = optax.GradientTransformation


@dataclass(frozen=True)
class Setting:
    """What stands around an optimizer.

    Attributes:
        kind: the optimizer's type in lower case.
        schedule: base learning rate -> learning rate by the updates applied so far.
        momentum: what the schedule does to the momentum.
        group: dotted name -> parameter group.
        loop_dims: dotted name -> the dimensions that a loop over layers walks along.
    """

    kind: str
    schedule: Callable[[float], optax.Schedule]
    momentum: Momentum | None
    group: OfName
    loop_dims: LoopDims

    def rate(self, base: float) -> tuple[Transformation, Transformation]:
        """The end of a chain: the negative learning rate, and the group's multiplier."""
        return optax.scale_by_learning_rate(self.schedule(base)), scale_by_multiplier(self.group)

    def decay(self, weight_decay: float) -> Transformation:
        """Adds the decayed weights: in front of the moments for L2, behind them for decoupled decay."""
        return add_decayed_weights(weight_decay, self.group)

    def betas(self, betas: tuple[float, float]) -> tuple[float | optax.Schedule, float]:
        """The two betas, the first one a function of the applied updates where the schedule cycles it."""
        if self.momentum is None:
            return betas
        return self.momentum.schedule, self.momentum.beta2 or betas[1]

    def around(self, rule: Transformation, lr: float, weight_decay: float, *, decoupled: bool) -> Transformation:
        """A whole optimizer around a rule."""
        decay, rate = self.decay(weight_decay), self.rate(lr)
        return optax.chain(rule, decay, *rate) if decoupled else optax.chain(decay, rule, *rate)


def _moments(
    scale_by: Callable[..., Transformation], betas: tuple[float, float], s: Setting, **others: float | optax.Schedule
) -> Transformation:
    """A rule with two betas; what is a function of the applied updates is read anew at each of them."""
    b1, b2 = s.betas(betas)
    arguments = {"b1": b1, "b2": b2, **others}
    scheduled = [name for name, value in arguments.items() if callable(value)]
    if not scheduled:
        return scale_by(**arguments)
    fixed = set(inspect.signature(scale_by).parameters).difference(scheduled)
    return optax.inject_hyperparams(scale_by, fixed)(**arguments)


def _one_less_power(beta: ArrayLike, k: ArrayLike) -> jax.Array:
    """1 - beta ** (k + 1), the bias of a mean after k + 1 values; the power itself has too few digits of it in fp32."""
    log = math.log(beta) if isinstance(beta, float) and beta > 0 else jnp.log(beta)
    return -jnp.expm1((jnp.asarray(k, float) + 1) * log)


def _trace(momentum: float, s: Setting, *, nesterov: bool = False) -> Transformation:
    """Momentum without betas."""
    if s.momentum is not None and not s.momentum.only_betas:
        return optax.inject_hyperparams(optax.trace, ("nesterov",))(decay=s.momentum.schedule, nesterov=nesterov)
    return optax.trace(momentum, nesterov) if momentum else optax.identity()


def adam(params: p.AdamParams, s: Setting) -> Transformation:
    """Adam and AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019)."""
    decoupled = s.kind == "adamw" or params.adam_w_mode
    decay = params.weight_decay
    if decay is None:  # torch.optim.AdamW has a default of its own
        decay = 0.01 if params.torch_adam and decoupled else 0.0
    scale_by = optax.scale_by_adam if params.bias_correction else transforms.scale_by_uncorrected_adam
    return s.around(_moments(scale_by, params.betas, s, eps=params.eps), params.lr, decay, decoupled=decoupled)


def lamb(params: p.LambParams, s: Setting) -> Transformation:
    """LAMB (You et al. 2020) as DeepSpeed's fused kernel has it.

    It corrects the bias of the whole update by one factor, behind the ratio of norms; the paper and optax correct the
    moments.
    """
    b1, b2 = s.betas(params.betas)
    eps, eps_root = (0.0, params.eps) if params.eps_inside_sqrt else (params.eps, 0.0)
    rule = _moments(transforms.scale_by_uncorrected_adam, params.betas, s, eps=eps, eps_root=eps_root)
    ratio = transforms.scale_by_bounded_trust_ratio(params.min_coeff, params.max_coeff)

    def correction(k: ArrayLike) -> jax.Array:
        return jnp.sqrt(_one_less_power(b2, k)) / _one_less_power(b1(k) if callable(b1) else b1, k)

    corrected = optax.scale_by_schedule(correction) if params.bias_correction else optax.identity()
    return optax.chain(rule, s.decay(params.weight_decay), ratio, corrected, *s.rate(params.lr))


def sgd(params: p.SGDParams, s: Setting) -> Transformation:
    """Gradient descent with momentum, dampened from the second update on."""
    entering = optax.identity()
    if params.dampening:
        entering = optax.scale_by_schedule(lambda k: jnp.where(k == 0, 1.0, 1.0 - params.dampening))
    rule = optax.chain(entering, _trace(params.momentum, s, nesterov=params.nesterov))
    return s.around(rule, params.lr, params.weight_decay, decoupled=False)


def lion(params: p.LionParams, s: Setting) -> Transformation:
    """Lion (Chen et al. 2023)."""
    rule = _moments(optax.scale_by_lion, params.betas, s)
    return s.around(rule, params.lr, params.weight_decay, decoupled=True)


def muon(params: p.MuonParams, s: Setting) -> Transformation:
    """Muon (Jordan et al. 2024) for hidden matrices, AdamW for the rest."""
    muon_lr, adam_lr = muon_rates(params)
    b1, b2 = params.betas

    def part(path: KeyPath, x: jax.Array) -> str:
        name = path_name(path)
        return "muon" if is_muon_matrix(name, x.ndim - len(s.loop_dims(name))) else "adam"

    parts: dict[Hashable, Transformation] = {
        "muon": s.around(
            scale_by_deepspeeds_muon(params.momentum, s.loop_dims), muon_lr, params.weight_decay, decoupled=True
        ),
        "adam": s.around(optax.scale_by_adam(b1, b2, params.eps), adam_lr, params.weight_decay, decoupled=True),
    }
    return optax.partition(parts, lambda tree: jax.tree_util.tree_map_with_path(part, tree))


def muon_rates(params: p.MuonParams) -> tuple[float, float]:
    """The learning rates of the matrices and of the rest, as DeepSpeed fills what is not given."""
    muon_lr = params.lr if params.muon_lr is None else params.muon_lr
    rest = params.lr if "lr" in params.model_fields_set else 3e-4
    return muon_lr, rest if params.adam_lr is None else params.adam_lr


def adagrad(params: p.AdagradParams, s: Setting) -> Transformation:
    """Adagrad (Duchi et al. 2011)."""
    rule = transforms.scale_by_root_of_sum(params.initial_accumulator_value, params.eps)
    if params.lr_decay:
        rule = optax.chain(rule, optax.scale_by_schedule(lambda k: 1 / (1 + jnp.asarray(k, float) * params.lr_decay)))
    return s.around(rule, params.lr, params.weight_decay, decoupled=False)


def adadelta(params: p.AdadeltaParams, s: Setting) -> Transformation:
    """Adadelta (Zeiler 2012)."""
    rule = optax.scale_by_adadelta(params.rho, params.eps)
    return s.around(rule, params.lr, params.weight_decay, decoupled=False)


def adamax(params: p.AdamaxParams, s: Setting) -> Transformation:
    """Adamax (Kingma and Ba 2015, section 7)."""
    rule = _moments(optax.scale_by_adamax, params.betas, s, eps=params.eps)
    return s.around(rule, params.lr, params.weight_decay, decoupled=False)


def nadam(params: p.NAdamParams, s: Setting) -> Transformation:
    """NAdam (Dozat 2016)."""
    rule = _moments(transforms.scale_by_nadam, params.betas, s, eps=params.eps, momentum_decay=params.momentum_decay)
    return s.around(rule, params.lr, params.weight_decay, decoupled=params.decoupled_weight_decay)


def radam(params: p.RAdamParams, s: Setting) -> Transformation:
    """RAdam (Liu et al. 2020). torch adds eps before it corrects the bias of the second moment, optax after it."""
    _, b2 = s.betas(params.betas)

    def eps(k: ArrayLike) -> jax.Array:
        return params.eps / jnp.sqrt(_one_less_power(b2, k))

    rule = _moments(optax.scale_by_radam, params.betas, s, eps=eps)
    return s.around(rule, params.lr, params.weight_decay, decoupled=params.decoupled_weight_decay)


def rmsprop(params: p.RMSpropParams, s: Setting) -> Transformation:
    """RMSprop (Tieleman and Hinton 2012; centered: Graves 2013)."""
    scale_by = optax.scale_by_stddev if params.centered else optax.scale_by_rms
    rule = scale_by(decay=params.alpha, eps=params.eps, eps_in_sqrt=False)
    # The momentum is of updates, before the learning rate; optax.rmsprop takes it behind.
    return s.around(optax.chain(rule, _trace(params.momentum, s)), params.lr, params.weight_decay, decoupled=False)


def rprop(params: p.RpropParams, s: Setting) -> Transformation:
    """Rprop (Riedmiller and Braun 1993): step sizes of its own, which only start from the learning rate."""
    first = float(jnp.asarray(s.schedule(params.lr)(0)))
    return optax.chain(transforms.scale_by_rprop(first, *params.etas, *params.step_sizes), optax.scale(-1.0))


RULES: dict[type, Callable[..., Transformation]] = {
    p.AdamParams: adam,
    p.LambParams: lamb,
    p.LionParams: lion,
    p.MuonParams: muon,
    p.SGDParams: sgd,
    p.AdagradParams: adagrad,
    p.AdadeltaParams: adadelta,
    p.AdamaxParams: adamax,
    p.NAdamParams: nadam,
    p.RAdamParams: radam,
    p.RMSpropParams: rmsprop,
    p.RpropParams: rprop,
}
"""The rule by the schema of the type's parameters."""


def takes_momentum(params: Params, momentum: Momentum) -> bool:
    """Whether the optimizer has a momentum that the schedule cycles.

    Raises:
        ConfigError: it has none, which torch refuses too; DeepSpeed leaves it alone.
    """
    if momentum.only_betas:
        return params.cycled == "betas"
    if params.cycled is None:
        raise ConfigError(
            "`scheduler.params.cycle_momentum` is true, but the optimizer has neither betas nor a momentum to cycle; "
            "set it to false."
        )
    return True
