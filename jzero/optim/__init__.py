"""The `optimizer` section as an optax transformation, with the arithmetic of DeepSpeed's and torch's optimizers.

Nothing here clips: the step clips by the global norm before the update. "Adam" is AdamW, as in DeepSpeed, unless
`adam_w_mode` is false.
"""

from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import optax

from jzero.config import ResolvedConfig
from jzero.config.schema import optimizer_params as p
from jzero.errors import ConfigError
from jzero.optim.groups import assign
from jzero.optim.rules import RULES, Setting, muon_rates, takes_momentum
from jzero.schedules import build_momentum, build_schedule

__all__ = ["Optimizer", "build_optimizer"]


class Optimizer(NamedTuple):
    """An optimizer and what it reads at each update.

    Attributes:
        transformation: of gradients into updates.
        learning_rate: updates applied so far -> the base learning rate, which parameter groups multiply; Muon's is
            that of its matrices.
        momentum: updates applied so far -> betas[0] or the momentum, None if no schedule cycles it.
    """

    transformation: optax.GradientTransformation
    learning_rate: optax.Schedule | None
    momentum: optax.Schedule | None = None


def build_optimizer(
    config: ResolvedConfig,
    *,
    schedule: optax.Schedule | None = None,
    parameters: Mapping[str, Collection[int]] | None = None,
) -> Optimizer:
    """Builds what the sections `optimizer`, `scheduler` and `jzero.param_groups` describe.

    Args:
        config: A resolved configuration.
        schedule: Applied updates -> learning rate, in place of the `scheduler` section. Where parts of the model have a
            base rate of their own (Muon's `muon_lr` and `adam_lr`), it is that of `lr`, and theirs are in proportion.
        parameters: Dotted name of each parameter that is trained -> the dimensions that a loop over layers walks
            along. Without them there can be no parameter groups.

    Raises:
        ConfigError: There is no optimizer, or the sections do not fit each other or the parameters.

    Example:
        >>> import jax.numpy as jnp
        >>> from jzero.config import Config
        >>> config = Config.load({"train_batch_size": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.5}}})
        >>> optimizer = build_optimizer(config.resolve(world=1))
        >>> weights = jnp.ones(1)
        >>> sgd = optimizer.transformation
        >>> updates, _ = sgd.update(jnp.ones(1), sgd.init(weights), weights)
        >>> float(updates[0]), float(optimizer.learning_rate(0))
        (-0.5, 0.5)
    """
    if config.optimizer is None:
        raise ConfigError(
            "the configuration has no `optimizer`; add one, or pass an optax transformation as `optimizer=`."
        )
    params, parameters = config.optimizer.params, parameters or {}
    groups = assign(config.jzero.param_groups, parameters)
    if groups and isinstance(params, p.RpropParams):
        raise ConfigError("jzero.param_groups: Rprop has neither a weight decay nor a learning rate to change.")
    momentum = build_momentum(config.scheduler) if schedule is None else None
    if momentum is not None and not takes_momentum(params, momentum):
        momentum = None
    scheduled = _schedules(config, params.lr, schedule)
    setting = Setting(
        config.optimizer.type.lower(), scheduled, momentum, groups.get, lambda name: parameters.get(name, ())
    )
    base = muon_rates(params)[0] if isinstance(params, p.MuonParams) else params.lr
    rule = RULES[type(params)](params, setting)
    return Optimizer(rule, scheduled(base), None if momentum is None else momentum.schedule)


def _schedules(config: ResolvedConfig, lr: float, given: optax.Schedule | None) -> Callable[[float], optax.Schedule]:
    """Base rate -> schedule; a schedule that was given is that of `lr`."""

    def scheduled(base: float) -> optax.Schedule:
        if given is None:
            return build_schedule(config.scheduler, base)
        if base == lr:
            return given
        if not lr:
            raise ConfigError(
                f"`optimizer.params.lr` is 0, so nothing tells how a schedule applies to a rate of {base}."
            )
        ratio = base / lr
        return lambda applied: given(applied) * ratio  # type: ignore[misc]

    return scheduled
