"""The dynamic loss scale of fp16 as a pure state machine, and the memory of skipped steps in every dtype.

An overflow halves the scale, a window of good steps doubles it: one rule at every ZeRO stage, that of DeepSpeed's
`fp16` section. Mind that the first doubling comes after `loss_scale_window` + 1 good steps. fp32 and bf16 have a scale
of 1, a static scale never changes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jzero.config import ResolvedConfig
from jzero.config.schema.precision import LARGEST_SCALE

RECENT_STEPS = 100
"""Over how many steps the share of skipped ones is taken."""


class LossScaleState(NamedTuple):
    """What the scaler remembers between steps; scalars but for `recent`."""

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
    skipped_in_a_row: jax.Array
    """i32: skipped steps since the last one that was not."""
    recent: jax.Array
    """bool[RECENT_STEPS]: a ring, in which step `i` stands at `i % RECENT_STEPS`: whether it was skipped."""


def _is_dynamic(config: ResolvedConfig) -> bool:
    return config.precision == "fp16" and config.fp16.loss_scale == 0


def _largest(config: ResolvedConfig) -> float:
    """The most the scale grows to: what is given, or what fp32 holds, for an infinite scale would never shrink."""
    given = config.jzero.max_loss_scale
    return LARGEST_SCALE if given is None else given


def init_loss_scale(config: ResolvedConfig) -> LossScaleState:
    """Returns the state before the first step.

    Args:
        config: Reads `precision`, `fp16.loss_scale`, `fp16.initial_scale_power`, `fp16.hysteresis` and
            `jzero.max_loss_scale`.

    Example:
        >>> from jzero.config import Config
        >>> config = Config.load({"train_batch_size": 1, "fp16": {"enabled": True, "initial_scale_power": 4}})
        >>> float(init_loss_scale(config.resolve(world=1)).scale)
        16.0
    """
    static = config.fp16.loss_scale if config.precision == "fp16" else 1.0
    scale = min(2.0**config.fp16.initial_scale_power, _largest(config)) if _is_dynamic(config) else static
    return LossScaleState(
        scale=jnp.asarray(scale, jnp.float32),
        iteration=jnp.asarray(0, jnp.int32),
        last_overflow=jnp.asarray(-1, jnp.int32),
        hysteresis_left=jnp.asarray(config.fp16.hysteresis, jnp.int32),
        exhausted=jnp.asarray(False),
        skipped_in_a_row=jnp.asarray(0, jnp.int32),
        recent=jnp.zeros(RECENT_STEPS, bool),
    )


def update_loss_scale(state: LossScaleState, overflow: jax.Array, config: ResolvedConfig) -> LossScaleState:
    """Returns the state after a step; a static scale stays as it is.

    Args:
        state: The state that the step used.
        overflow: bool[]: whether any gradient was not finite, so that the step was skipped.
        config: Reads the `fp16` section and `jzero.max_loss_scale`.

    Returns:
        The next state. `exhausted` is set where DeepSpeed raises: an overflow that should halve a scale already at
        `min_loss_scale`.
    """
    counted = state._replace(
        iteration=state.iteration + 1,
        last_overflow=jnp.where(overflow, state.iteration, state.last_overflow),
        skipped_in_a_row=jnp.where(overflow, state.skipped_in_a_row + 1, 0),
        recent=state.recent.at[state.iteration % RECENT_STEPS].set(overflow),
    )
    if not _is_dynamic(config):
        return counted
    fp16 = config.fp16
    smallest = jnp.asarray(fp16.min_loss_scale, jnp.float32)
    full = jnp.asarray(fp16.hysteresis, jnp.int32)

    halves = overflow & (state.hysteresis_left <= 1)
    halved = jnp.maximum(state.scale / 2, smallest)
    stable = state.iteration - state.last_overflow - 1
    doubles = ~overflow & (stable > 0) & (stable % fp16.loss_scale_window == 0)
    doubled = jnp.minimum(state.scale * 2, jnp.asarray(_largest(config), jnp.float32))
    refills = ~overflow if fp16.consecutive_hysteresis else doubles
    spent = jnp.where(overflow & ~halves, state.hysteresis_left - 1, state.hysteresis_left)
    return counted._replace(
        scale=jnp.where(halves, halved, jnp.where(doubles, doubled, state.scale)),
        hysteresis_left=jnp.where(refills, full, spent),
        exhausted=halves & (state.scale == smallest),
    )


def skipped_share(state: LossScaleState) -> jax.Array:
    """The share of skipped steps among the last `RECENT_STEPS`, as far as there were so many.

    Args:
        state: The state after a step.

    Returns:
        f32[] between 0 and 1.
    """
    return state.recent.sum(dtype=jnp.float32) / jnp.clip(state.iteration, 1, RECENT_STEPS).astype(jnp.float32)
