"""Learning-rate schedules by DeepSpeed's, torch's and Hugging Face's names, driven by the updates that were applied."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jzero.config import SchedulerConfig
from jzero.config.schema import deepspeed_schedules as d
from jzero.config.schema import torch_schedules as t
from jzero.schedules import deepspeed, torch
from jzero.schedules.huggingface import hf_schedule
from jzero.schedules.shapes import Shape

__all__ = ["Momentum", "build_momentum", "build_schedule", "hf_schedule"]

_RATES: dict[type, Callable[[Any, float], Shape]] = {
    d.WarmupParams: deepspeed.warmup_lr,
    d.WarmupDecayParams: deepspeed.warmup_decay_lr,
    d.WarmupCosineParams: deepspeed.warmup_cosine_lr,
    d.OneCycleParams: deepspeed.one_cycle,
    d.LRRangeTestParams: deepspeed.lr_range_test,
    t.ConstantParams: torch.constant_lr,
    t.LinearParams: torch.linear_lr,
    t.PolynomialParams: torch.polynomial_lr,
    t.StepParams: torch.step_lr,
    t.MultiStepParams: torch.multi_step_lr,
    t.ExponentialParams: torch.exponential_lr,
    t.CosineAnnealingParams: torch.cosine_annealing_lr,
    t.WarmRestartsParams: torch.cosine_annealing_warm_restarts,
    t.CyclicParams: torch.cyclic_lr,
    t.OneCycleLRParams: torch.one_cycle_lr,
}


class Momentum(NamedTuple):
    """What a schedule does to an optimizer's momentum.

    Attributes:
        schedule: updates applied so far -> betas[0], or the momentum of an optimizer without betas.
        beta2: what it sets betas[1] to, None to leave it.
        only_betas: leaves optimizers without betas as they are.
    """

    schedule: optax.Schedule
    beta2: float | None = None
    only_betas: bool = False


def build_schedule(scheduler: SchedulerConfig | None, base_learning_rate: float) -> optax.Schedule:
    """Returns the learning rate as a function of the number of updates applied so far.

    Args:
        scheduler: The `scheduler` section; None, or one without a type, is a constant rate.
        base_learning_rate: The optimizer's `lr`.

    Returns:
        A function from an int or int32 array (0 for the first update) to the f32 rate of that update; works under jit.

    Example:
        >>> from jzero.config import Config
        >>> params = {"warmup_num_steps": 4, "warmup_type": "linear"}
        >>> config = Config.load({"scheduler": {"type": "WarmupLR", "params": params}})
        >>> schedule = build_schedule(config.scheduler, base_learning_rate=0.1)
        >>> [round(float(schedule(k)), 4) for k in range(7)]
        [0.0, 0.0, 0.025, 0.05, 0.075, 0.1, 0.1]
    """
    if scheduler is None or scheduler.type is None:
        return _schedule(lambda k: jnp.full_like(k, base_learning_rate, jnp.float32))
    return _schedule(_RATES[type(scheduler.params)](scheduler.params, base_learning_rate))


def build_momentum(scheduler: SchedulerConfig | None) -> Momentum | None:
    """Returns what the schedule does to the momentum, or None if it leaves it alone.

    Args:
        scheduler: The `scheduler` section.

    Example:
        >>> from jzero.config import Config
        >>> params = {"cycle_min_lr": 0.1, "cycle_max_lr": 1.0, "cycle_first_step_size": 4}
        >>> momentum = build_momentum(Config.load({"scheduler": {"type": "OneCycle", "params": params}}).scheduler)
        >>> [round(float(momentum.schedule(k)), 3) for k in range(6)]
        [0.8, 0.875, 0.85, 0.825, 0.8, 0.825]
    """
    params = scheduler and scheduler.params
    if not getattr(params, "cycle_momentum", False):
        return None
    if isinstance(params, d.OneCycleParams):
        return Momentum(_schedule(deepspeed.one_cycle_momentum(params)), deepspeed.BETA2, only_betas=True)
    if isinstance(params, t.CyclicParams):
        return Momentum(_schedule(torch.cyclic_momentum(params)))
    return Momentum(_schedule(torch.one_cycle_lr_momentum(params)))  # type: ignore[arg-type]


def _schedule(rate: Shape) -> optax.Schedule:
    def schedule(applied_steps: ArrayLike) -> jax.Array:
        return jnp.asarray(rate(jnp.asarray(applied_steps, jnp.int32)), jnp.float32)

    return schedule
