"""The dynamic loss scale of fp16 as a pure state machine: halve on overflow, double after a window of good steps.

One rule at every ZeRO stage. fp32 and bf16 have a scale of 1, a static scale never changes. The rule is the one of
DeepSpeed's `fp16` section; mind that the first doubling comes after `loss_scale_window` + 1 good steps.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jzero.config import Config


class LossScaleState(NamedTuple):
    """What the scaler remembers between steps; every field is a scalar array."""

    scale: jax.Array
    """f32: the factor of the loss in the coming step."""
    iteration: jax.Array
    """i32: steps so far, skipped ones included."""
    last_overflow: jax.Array
    """i32: the iteration of the last overflow, -1 before any."""
    hysteresis_left: jax.Array
    """i32: at 1 the next overflow halves the scale; above, it only counts down."""
    exhausted: jax.Array
    """bool: the last step overflowed although the scale was at its minimum."""


def _is_dynamic(config: Config) -> bool:
    return config.precision == "fp16" and config.fp16.loss_scale == 0


def init_loss_scale(config: Config) -> LossScaleState:
    """Returns the state before the first step.

    Args:
        config: Reads `precision`, `fp16.loss_scale`, `fp16.initial_scale_power` and `fp16.hysteresis`.

    Example:
        >>> float(init_loss_scale(Config.load({"fp16": {"enabled": True, "initial_scale_power": 4}})).scale)
        16.0
    """
    static = config.fp16.loss_scale if config.precision == "fp16" else 1.0
    scale = 2.0**config.fp16.initial_scale_power if _is_dynamic(config) else static
    return LossScaleState(
        scale=jnp.asarray(scale, jnp.float32),
        iteration=jnp.asarray(0, jnp.int32),
        last_overflow=jnp.asarray(-1, jnp.int32),
        hysteresis_left=jnp.asarray(config.fp16.hysteresis, jnp.int32),
        exhausted=jnp.asarray(False),
    )


def update_loss_scale(state: LossScaleState, overflow: jax.Array, config: Config) -> LossScaleState:
    """Returns the state after a step; a static scale and its state stay as they are.

    Args:
        state: The state that the step used.
        overflow: bool[]: whether any gradient was not finite, so that the step was skipped.
        config: Reads the `fp16` section.

    Returns:
        The next state. `exhausted` is set where DeepSpeed raises: an overflow that should halve a scale already at
        `min_loss_scale`.
    """
    if not _is_dynamic(config):
        return state
    fp16 = config.fp16
    smallest = jnp.asarray(fp16.min_loss_scale, jnp.float32)
    full = jnp.asarray(fp16.hysteresis, jnp.int32)

    halves = overflow & (state.hysteresis_left <= 1)
    halved = jnp.maximum(state.scale / 2, smallest)
    stable = state.iteration - state.last_overflow - 1
    doubles = ~overflow & (stable > 0) & (stable % fp16.loss_scale_window == 0)
    refills = ~overflow if fp16.consecutive_hysteresis else doubles
    spent = jnp.where(overflow & ~halves, state.hysteresis_left - 1, state.hysteresis_left)
    return LossScaleState(
        scale=jnp.where(halves, halved, jnp.where(doubles, state.scale * 2, state.scale)),
        iteration=state.iteration + 1,
        last_overflow=jnp.where(overflow, state.iteration, state.last_overflow),
        hysteresis_left=jnp.where(refills, full, spent),
        exhausted=halves & (state.scale == smallest),
    )
