"""torch's schedules in closed form, as functions of the number k of updates applied before."""

import jax
import jax.numpy as jnp

from jzero.config.schema import torch_schedules as t
from jzero.schedules.shapes import Shape, between, fall, power, share


def constant_lr(params: t.ConstantParams, base: float) -> Shape:
    """ConstantLR: a factor on the first updates."""
    return lambda k: jnp.where(k < params.total_iters, base * params.factor, base)


def linear_lr(params: t.LinearParams, base: float) -> Shape:
    """LinearLR: from one factor to another in a line."""
    start, end = base * params.start_factor, base * params.end_factor
    return lambda k: between(start, end, share(k, params.total_iters))


def polynomial_lr(params: t.PolynomialParams, base: float) -> Shape:
    """PolynomialLR: a power of the remaining share."""
    return lambda k: base * share(params.total_iters - k, params.total_iters) ** params.power


def step_lr(params: t.StepParams, base: float) -> Shape:
    """StepLR: a factor every so many updates."""
    return lambda k: base * power(params.gamma, k // params.step_size)


def multi_step_lr(params: t.MultiStepParams, base: float) -> Shape:
    """MultiStepLR: a factor at each milestone."""
    milestones = jnp.asarray(params.milestones, jnp.int32)
    return lambda k: base * power(params.gamma, jnp.sum(k[..., None] >= milestones, axis=-1))


def exponential_lr(params: t.ExponentialParams, base: float) -> Shape:
    """ExponentialLR: a factor at each update."""
    return lambda k: base * power(params.gamma, k)


def cosine_annealing_lr(params: t.CosineAnnealingParams, base: float) -> Shape:
    """CosineAnnealingLR: down half a cosine in T_max updates, up again in the next."""
    period = params.T_max

    def rate(k: jax.Array) -> jax.Array:
        return between(params.eta_min, base, fall(share(abs(period - k % (2 * period)), period)))

    return rate


def cosine_annealing_warm_restarts(params: t.WarmRestartsParams, base: float) -> Shape:
    """CosineAnnealingWarmRestarts (Loshchilov and Hutter 2017): down half a cosine in each of ever longer cycles."""
    ends, length = [], params.T_0
    while params.T_mult > 1 and (not ends or ends[-1] < 2**31 - 1):
        ends.append(min((ends[-1] if ends else 0) + length, 2**31 - 1))
        length *= params.T_mult
    later = jnp.asarray(ends, jnp.int32)

    def rate(k: jax.Array) -> jax.Array:
        if params.T_mult == 1:
            remaining = share(params.T_0 - k % params.T_0, params.T_0)
        else:
            cycle = jnp.sum(k[..., None] >= later, axis=-1)
            end, start = later[cycle], jnp.where(cycle == 0, 0, later[cycle - 1])
            remaining = (end - k).astype(jnp.float32) / (end - start).astype(jnp.float32)
        return between(params.eta_min, base, fall(remaining))

    return rate


def cyclic_lr(params: t.CyclicParams, base: float) -> Shape:
    """CyclicLR (Smith 2017): up and down between two rates, again and again."""
    del base
    height = _waves(params)
    return lambda k: between(params.base_lr, params.max_lr, height(k))


def cyclic_momentum(params: t.CyclicParams) -> Shape:
    """CyclicLR's momentum: from its maximum down and up again."""
    height = _waves(params)
    return lambda k: between(params.max_momentum, params.base_momentum, height(k))


def _waves(params: t.CyclicParams) -> Shape:
    up, down = params.step_size_up, params.step_size_down or params.step_size_up

    def height(k: jax.Array) -> jax.Array:
        position = k % (up + down)
        wave = jnp.where(position <= up, share(position, up), share(up + down - position, down))
        if params.mode == "triangular2":
            return wave * power(0.5, k // (up + down))
        return wave * power(params.gamma, k) if params.mode == "exp_range" else wave

    return height


def one_cycle_lr(params: t.OneCycleLRParams, base: float) -> Shape:
    """OneCycleLR (Smith and Topin 2018): up to the maximum, down in one phase or two, and then the last rate."""
    del base
    first = params.max_lr / params.div_factor
    last = first / params.final_div_factor
    return _phases(params, [first, params.max_lr, first, last] if params.three_phase else [first, params.max_lr, last])


def one_cycle_lr_momentum(params: t.OneCycleLRParams) -> Shape:
    """OneCycleLR's momentum: from its maximum down and up again."""
    high, low = params.max_momentum, params.base_momentum
    return _phases(params, [high, low, high, high] if params.three_phase else [high, low, high])


def _phases(params: t.OneCycleLRParams, values: list[float]) -> Shape:
    """From value to value, each phase ending at an update that may lie between two whole ones."""
    total = params.total_steps or (params.epochs or 0) * (params.steps_per_epoch or 0)
    rising = params.pct_start * total
    ends = [rising - 1, 2 * rising - 2, total - 1] if params.three_phase else [rising - 1, total - 1]

    def value(k: jax.Array) -> jax.Array:
        step, result, start = k.astype(jnp.float32), None, 0.0
        for i, end in enumerate(ends):
            remaining = jnp.clip((end - step) / ((end - start) or 1.0), 0.0, 1.0)
            height = remaining if params.anneal_strategy == "linear" else fall(remaining)
            phase = between(values[i + 1], values[i], height)
            result = phase if result is None else jnp.where(step > start, phase, result)
            start = end
        assert result is not None
        return result

    return value
