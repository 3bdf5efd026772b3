"""DeepSpeed's and Hugging Face's learning-rate schedules, as functions of the number of applied updates.

DeepSpeed sets a schedule's first value before any update and steps it after each one, so that update number k (from 0)
uses the formula at t = k - 1: the first two updates have the rate at which the warm-up starts. Hugging Face's schedules
use t = k.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jzero.config import SchedulerConfig, TrainingArguments
from jzero.config.scheduler import WarmupCosineParams, WarmupDecayParams, WarmupParams

Shape = Callable[[jax.Array], jax.Array]


def _share(done: jax.Array, whole: int) -> jax.Array:
    """The share done / whole in [0, 1] as f32; the difference of steps before it stays exact in int32."""
    return jnp.clip(done.astype(jnp.float32) / max(whole, 1), 0.0, 1.0)


def _fall(remaining: jax.Array) -> jax.Array:
    """Half a cosine from 1 to 0 over the remaining share; (1 + cos(pi p)) / 2 would lose all digits near its end."""
    return jnp.square(jnp.sin(remaining * (math.pi / 2)))


def _warmup(params: WarmupParams | WarmupDecayParams | WarmupCosineParams) -> tuple[int, Shape]:
    steps = max(2, params.warmup_num_steps)
    if params.warmup_type == "linear":
        return steps, lambda t: _share(t, steps)
    return steps, lambda t: jnp.minimum(jnp.log(t.astype(jnp.float32) + 1) / math.log(steps), 1.0)


def _warmup_lr(params: WarmupParams, base: float) -> Shape:
    low, high = params.warmup_min_lr, base if params.warmup_max_lr is None else params.warmup_max_lr
    steps, rise = _warmup(params)
    return lambda t: low + (high - low) * jnp.where(t < steps, rise(t), 1.0)


def _warmup_decay_lr(params: WarmupDecayParams, base: float) -> Shape:
    del base
    low, high, total = params.warmup_min_lr, params.warmup_max_lr, params.total_num_steps
    steps, rise = _warmup(params)
    return lambda t: low + (high - low) * jnp.where(t < steps, rise(t), _share(total - t, total - steps))


def _warmup_cosine_lr(params: WarmupCosineParams, base: float) -> Shape:
    start, end, total = params.warmup_min_ratio, params.cos_min_ratio, params.total_num_steps
    steps, rise = _warmup(params)

    def ratio(t: jax.Array) -> jax.Array:
        rising = start + (1 - start) * rise(t)
        return jnp.where(t < steps, rising, end + (1 - end) * _fall(_share(total - t - 1, total - steps)))

    return lambda t: base * ratio(t)


_FORMULAS: dict[type, Callable[[Any, float], Shape]] = {
    WarmupParams: _warmup_lr,
    WarmupDecayParams: _warmup_decay_lr,
    WarmupCosineParams: _warmup_cosine_lr,
}


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
    formula = _FORMULAS[type(scheduler.params)](scheduler.params, base_learning_rate)
    cosine = scheduler.type == "WarmupCosineLR"

    def rate(k: jax.Array) -> jax.Array:
        started = formula(jnp.maximum(k - 1, 0))
        return jnp.where(k == 0, 0.0, started) if cosine else started  # its ratio is 0 at t = -1, whatever the start

    return _schedule(rate)


def hf_schedule(training_arguments: TrainingArguments, num_training_steps: int) -> optax.Schedule:
    """Returns the schedule that `lr_scheduler_type` names, as Hugging Face's Trainer has it.

    Args:
        training_arguments: Reads `lr_scheduler_type`, `learning_rate`, `warmup_steps` and `warmup_ratio`.
        num_training_steps: Updates of the whole run, where the rate reaches 0 (linear, cosine).

    Example:
        >>> schedule = hf_schedule(TrainingArguments(learning_rate=1.0, warmup_steps=2), num_training_steps=6)
        >>> [float(schedule(k)) for k in range(7)]
        [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    kind, base = training_arguments.lr_scheduler_type, training_arguments.learning_rate
    warmup = 0 if kind == "constant" else training_arguments.warmup_updates(num_training_steps)

    def rate(k: jax.Array) -> jax.Array:
        remaining = _share(num_training_steps - k, num_training_steps - warmup)
        after = {"linear": remaining, "cosine": _fall(remaining)}.get(kind, jnp.ones_like(remaining))
        return base * jnp.where(k < warmup, _share(k, warmup), after)

    return _schedule(rate)


def _schedule(rate: Shape) -> optax.Schedule:
    return lambda applied_steps: rate(jnp.asarray(applied_steps, jnp.int32))
