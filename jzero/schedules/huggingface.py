"""The schedules of Hugging Face's Trainer, as factors on the learning rate: functions of the updates applied before."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import ArrayLike

from jzero.config import TrainingArguments
from jzero.config.schema import hf_schedules as h
from jzero.config.schema.scalars import LARGEST_32
from jzero.errors import ConfigError
from jzero.schedules.shapes import Shape, between, fall, share, waves


def _linear(kwargs: h.NoKwargs, base: float, warmup: int, total: int) -> Shape:
    return lambda k: share(total - k, total - warmup)


def _constant(kwargs: h.NoKwargs, base: float, warmup: int, total: int) -> Shape:
    return lambda k: jnp.ones_like(k, jnp.float32)


def _cosine(kwargs: h.CosineKwargs, base: float, warmup: int, total: int) -> Shape:
    return lambda k: waves(share(total - k, total - warmup), kwargs.num_cycles)


def _restarts(kwargs: h.RestartsKwargs, base: float, warmup: int, total: int) -> Shape:
    length = max(1, total - warmup)
    if length * kwargs.num_cycles > LARGEST_32:
        raise ConfigError(
            f"lr_scheduler_kwargs.num_cycles is {kwargs.num_cycles}; it must be at most {LARGEST_32 // length} "
            f"for {length} steps after the warm-up."
        )

    def factor(k: jax.Array) -> jax.Array:
        position = ((k - warmup) * kwargs.num_cycles) % length
        return jnp.where(k >= total, 0.0, fall(share(length - position, length)))

    return factor


def _polynomial(kwargs: h.PolynomialKwargs, base: float, warmup: int, total: int) -> Shape:
    if kwargs.lr_end >= base:
        raise _above("lr_end", kwargs.lr_end, base)
    end = kwargs.lr_end / base
    return lambda k: between(end, 1.0, share(total - k, total - warmup) ** kwargs.power)


def _inverse_sqrt(kwargs: h.InverseSqrtKwargs, base: float, warmup: int, total: int) -> Shape:
    timescale = kwargs.timescale or warmup or 10_000
    return lambda k: jax.lax.rsqrt(jnp.maximum(k - warmup + timescale, 1).astype(jnp.float32) / timescale)


def _above(name: str, rate: float, base: float) -> ConfigError:
    return ConfigError(f"lr_scheduler_kwargs.{name} is {rate:g}; it must be below the rate {base:g}.")


def _low(kwargs: h.MinLrKwargs, base: float) -> float:
    if kwargs.min_lr is not None and kwargs.min_lr > base:
        raise _above("min_lr", kwargs.min_lr, base)
    return kwargs.min_lr / base if kwargs.min_lr is not None else kwargs.min_lr_rate or 0.0


def _min_lr(kwargs: h.MinLrKwargs, base: float, warmup: int, total: int) -> Shape:
    low = _low(kwargs, base)
    return lambda k: between(low, 1.0, waves(share(total - k, total - warmup), kwargs.num_cycles))


def _warmup_min_lr(kwargs: h.WarmupMinLrKwargs, base: float, warmup: int, total: int) -> Shape:
    """Like `_min_lr`, but one update ahead, and with a warm-up that does not start at 0."""
    low, start = _low(kwargs, base), kwargs.warmup_lr_rate

    def factor(k: jax.Array) -> jax.Array:
        rising = share(k + 1, warmup) if start is None else between(start, 1.0, share(k, warmup - 1))
        falling = between(low, 1.0, waves(share(total - k - 1, total - warmup), kwargs.num_cycles))
        return jnp.where(k < warmup, rising, falling)

    return factor


def _stable(kwargs: h.StableKwargs, base: float, warmup: int, total: int) -> Shape:
    """Up, level, down, each part with a form of its own, between `min_lr_ratio` and 1."""
    down, low = kwargs.num_decay_steps, kwargs.min_lr_ratio
    stable = total - warmup - down if kwargs.num_stable_steps is None else kwargs.num_stable_steps
    if warmup + stable + down > LARGEST_32:
        raise ConfigError(f"lr_scheduler_kwargs: warm-up, stable and decay steps are more than {LARGEST_32} together.")
    rises: dict[str, Shape] = {
        "linear": lambda k: share(k, warmup),
        "cosine": lambda k: fall(share(k, warmup)),
        "1-sqrt": lambda k: 1 - jnp.sqrt(share(warmup - k, warmup)),
    }
    falls: dict[str, Shape] = {
        "linear": lambda left: share(left, down),
        "cosine": lambda left: waves(share(left, down), kwargs.num_cycles),
        "1-sqrt": lambda left: 1 - jnp.sqrt(share(down - left, down)),
    }

    def factor(k: jax.Array) -> jax.Array:
        left = warmup + stable + down - k
        falling = jnp.where(left > 0, between(low, 1.0, falls[kwargs.decay_type](left)), low)
        after = jnp.where(k < warmup + stable, 1.0, falling)
        return jnp.where(k < warmup, between(low, 1.0, rises[kwargs.warmup_type](k)), after)

    return factor


_FACTORS: dict[str, Callable[[Any, float, int, int], Shape]] = {
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _restarts,
    "polynomial": _polynomial,
    "constant": _constant,
    "constant_with_warmup": _constant,
    "inverse_sqrt": _inverse_sqrt,
    "cosine_with_min_lr": _min_lr,
    "cosine_warmup_with_min_lr": _warmup_min_lr,
    "warmup_stable_decay": _stable,
}
_OWN_WARMUP = ("constant", "cosine_warmup_with_min_lr", "warmup_stable_decay")


def hf_schedule(training_arguments: TrainingArguments, num_training_steps: int) -> optax.Schedule:
    """Returns the schedule that `lr_scheduler_type` names, as Hugging Face's Trainer has it.

    Args:
        training_arguments: Reads `lr_scheduler_type`, `lr_scheduler_kwargs`, `learning_rate`, `warmup_steps` and
            `warmup_ratio`.
        num_training_steps: Updates of the whole run, where the rate reaches its end.

    Raises:
        ConfigError: `lr_scheduler_kwargs` are not those of the type, or do not fit the learning rate.

    Example:
        >>> schedule = hf_schedule(TrainingArguments(learning_rate=1.0, warmup_steps=2), num_training_steps=6)
        >>> [float(schedule(k)) for k in range(7)]
        [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    kind, base = training_arguments.lr_scheduler_type, training_arguments.learning_rate
    warmup = 0 if kind == "constant" else training_arguments.warmup_updates(num_training_steps)
    factor = _FACTORS[kind](training_arguments.schedule_kwargs, base or 1.0, warmup, num_training_steps)

    def rate(applied_steps: ArrayLike) -> jax.Array:
        k = jnp.asarray(applied_steps, jnp.int32)
        return base * (factor(k) if kind in _OWN_WARMUP else jnp.where(k < warmup, share(k, warmup), factor(k)))

    return rate
