"""The `optimizer` section as an optax transformation, with the arithmetic of DeepSpeed's and torch's optimizers.

Nothing here clips: the step clips by the global norm before the update. "Adam" is AdamW, as in DeepSpeed, unless
`adam_w_mode` is false.
"""

from collections.abc import Callable
from typing import Any

import optax

from jzero.config import OptimizerConfig
from jzero.config.optimizer import AdamParams, LionParams, SGDParams


def _adam(params: AdamParams, schedule: optax.Schedule, kind: str) -> optax.GradientTransformation:
    decoupled = kind == "adamw" or params.adam_w_mode
    decay = params.weight_decay
    if decay is None:  # torch.optim.AdamW has a default of its own
        decay = 0.01 if params.torch_adam and decoupled else 0.0
    b1, b2 = params.betas
    if decoupled:
        return optax.adamw(schedule, b1=b1, b2=b2, eps=params.eps, weight_decay=decay)
    return optax.chain(optax.add_decayed_weights(decay), optax.adam(schedule, b1=b1, b2=b2, eps=params.eps))


def _sgd(params: SGDParams, schedule: optax.Schedule, kind: str) -> optax.GradientTransformation:
    del kind
    sgd = optax.sgd(schedule, momentum=params.momentum or None, nesterov=params.nesterov)
    return optax.chain(optax.add_decayed_weights(params.weight_decay), sgd)


def _lion(params: LionParams, schedule: optax.Schedule, kind: str) -> optax.GradientTransformation:
    del kind
    b1, b2 = params.betas
    return optax.lion(schedule, b1=b1, b2=b2, weight_decay=params.weight_decay)


_BUILDERS: dict[type, Callable[[Any, optax.Schedule, str], optax.GradientTransformation]] = {
    AdamParams: _adam,
    SGDParams: _sgd,
    LionParams: _lion,
}


def build_optimizer(optimizer: OptimizerConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    """Returns the optax transformation of an `optimizer` section.

    Args:
        optimizer: The section of a resolved configuration.
        schedule: The learning rate per applied update, from `jzero.schedules`.

    Example:
        >>> import jax.numpy as jnp
        >>> from jzero.config import Config
        >>> config = Config.load({"optimizer": {"type": "SGD", "params": {"lr": 0.5}}})
        >>> optimizer = build_optimizer(config.optimizer, optax.constant_schedule(0.5))
        >>> weights = jnp.ones(1)
        >>> updates, _ = optimizer.update(jnp.ones(1), optimizer.init(weights), weights)
        >>> float(updates[0])
        -0.5
    """
    return _BUILDERS[type(optimizer.params)](optimizer.params, schedule, optimizer.type.lower())
