"""DeepSpeed's schedules, as functions of the number k of updates applied before.

DeepSpeed sets a schedule's first value before any update and steps it after each one, so that update k (from 0) of the
warm-ups uses their formula at t = k - 1: the first two updates have the rate at which the warm-up starts. OneCycle and
LRRangeTest count t + 1 themselves.
"""

import math

import jax
import jax.numpy as jnp

from jzero.config.schema.deepspeed_schedules import (
    LRRangeTestParams,
    OneCycleParams,
    WarmupCosineParams,
    WarmupDecayParams,
    WarmupParams,
)
from jzero.schedules.shapes import Shape, between, fall, share

BETA2 = 0.99
"""What OneCycle sets betas[1] to while it cycles betas[0]."""


def _warmup(params: WarmupParams | WarmupDecayParams | WarmupCosineParams) -> tuple[int, Shape]:
    steps = max(2, params.warmup_num_steps)
    if params.warmup_type == "linear":
        return steps, lambda t: share(t, steps)
    return steps, lambda t: jnp.minimum(jnp.log(t.astype(jnp.float32) + 1) / math.log(steps), 1.0)


def _before(k: jax.Array) -> jax.Array:
    return jnp.maximum(k - 1, 0)


def warmup_lr(params: WarmupParams, base: float) -> Shape:
    """WarmupLR: up to the maximum, then constant."""
    high = base if params.warmup_max_lr is None else params.warmup_max_lr
    steps, rise = _warmup(params)

    def rate(k: jax.Array) -> jax.Array:
        t = _before(k)
        return between(params.warmup_min_lr, high, jnp.where(t < steps, rise(t), 1.0))

    return rate


def warmup_decay_lr(params: WarmupDecayParams, base: float) -> Shape:
    """WarmupDecayLR: up to the maximum, then down to the minimum in a line."""
    del base
    total = params.total_num_steps
    steps, rise = _warmup(params)

    def rate(k: jax.Array) -> jax.Array:
        t = _before(k)
        height = jnp.where(t < steps, rise(t), share(total - t, total - steps))
        return between(params.warmup_min_lr, params.warmup_max_lr, height)

    return rate


def warmup_cosine_lr(params: WarmupCosineParams, base: float) -> Shape:
    """WarmupCosineLR: up to the optimizer's rate, then down half a cosine."""
    start, end, total = params.warmup_min_ratio, params.cos_min_ratio, params.total_num_steps
    steps, rise = _warmup(params)

    def rate(k: jax.Array) -> jax.Array:
        t = _before(k)
        falling = between(end, 1.0, fall(share(total - t - 1, total - steps)))
        ratio = jnp.where(t < steps, between(start, 1.0, rise(t)), falling)
        return base * jnp.where(k == 0, 0.0, ratio)  # the ratio is 0 at t = -1, whatever the start

    return rate


def lr_range_test(params: LRRangeTestParams, base: float) -> Shape:
    """LRRangeTest: up without end."""
    del base
    size = params.lr_range_test_step_size

    def rate(k: jax.Array) -> jax.Array:
        intervals = (k // size).astype(jnp.float32)
        if not params.lr_range_test_staircase:
            intervals += share(k % size, size)
        return params.lr_range_test_min_lr * (1 + params.lr_range_test_step_rate * intervals)

    return rate


def one_cycle(params: OneCycleParams, base: float) -> Shape:
    """OneCycle: up, down, and then a slow decay."""
    del base
    height, decay = _cycle(params)

    def rate(k: jax.Array) -> jax.Array:
        cycling = between(params.cycle_min_lr, params.cycle_max_lr, height(k))
        return cycling / (1 + params.decay_lr_rate * decay(k))  # the decay begins when the cycle is at its minimum

    return rate


def one_cycle_momentum(params: OneCycleParams) -> Shape:
    """OneCycle's betas[0]: from its maximum down and up again, then growing; its minimum before the first update."""
    height, decay = _cycle(params)

    def momentum(k: jax.Array) -> jax.Array:
        cycling = between(params.cycle_max_mom, params.cycle_min_mom, jnp.where(k == 0, 1.0, height(k)))
        return cycling * (1 + params.decay_mom_rate * decay(k))

    return momentum


def _cycle(params: OneCycleParams) -> tuple[Shape, Shape]:
    """The height in the cycle, and how many intervals of decay have passed since."""
    first = params.cycle_first_step_size
    second = params.cycle_second_step_size or first
    stairs = params.cycle_first_stair_count
    stairs_down = stairs if params.cycle_second_stair_count is None else params.cycle_second_stair_count

    def height(k: jax.Array) -> jax.Array:
        falling = jnp.maximum(first + second - k, 0)
        return jnp.where(k <= first, _stairs(k, first, stairs), _stairs(falling, second, stairs_down))

    def decay(k: jax.Array) -> jax.Array:
        after = jnp.maximum(k - first - second, 0).astype(jnp.float32)
        return after / params.decay_step_size if params.decay_step_size else jnp.zeros_like(after)

    return height, decay


def _stairs(done: jax.Array, whole: int, n_stairs: int) -> jax.Array:
    if not n_stairs:
        return share(done, whole)
    starts = jnp.asarray([-(-stair * whole // n_stairs) for stair in range(1, n_stairs + 1)], jnp.int32)
    return share(jnp.sum(done[..., None] >= starts, axis=-1), n_stairs)
