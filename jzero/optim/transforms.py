"""The parts of torch's and DeepSpeed's update rules that optax has otherwise or not at all, as optax transformations.

Each keeps its moments in optax's own state types, leaf by leaf beside the parameters, so that they are sharded and
saved like any other.
"""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from jzero.base.types import Grads, OptState, Params

Scalar: TypeAlias = float | jax.Array
"""A number, or one that is computed anew at each update."""


def scale_by_uncorrected_adam(
    b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-8, eps_root: float = 0.0
) -> optax.GradientTransformation:
    """Adam without bias correction: m / (sqrt(v + eps_root) + eps). DeepSpeed key `bias_correction`.

    Args:
        b1: decay of the first moment, as are all arguments a number.
        b2: decay of the second moment.
        eps: added to its root.
        eps_root: added to it under the root.
    """

    def init(params: Params) -> optax.ScaleByAdamState:
        return optax.ScaleByAdamState(
            jnp.zeros((), jnp.int32), optax.tree.zeros_like(params), optax.tree.zeros_like(params)
        )

    def update(updates: Grads, state: OptState, params: Params = None) -> tuple[Grads, optax.ScaleByAdamState]:
        del params
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        updates = jax.tree.map(lambda m, v: m / (jnp.sqrt(v + eps_root) + eps), mu, nu)
        return updates, optax.ScaleByAdamState(optax.safe_increment(state.count), mu, nu)

    return optax.GradientTransformation(init, update)


class ScaleByNAdamState(NamedTuple):
    """The state of `scale_by_nadam`: `momenta` is the product of all momenta so far."""

    count: jax.Array
    momenta: jax.Array
    mu: Params
    nu: Params


def scale_by_nadam(
    b1: Scalar = 0.9, b2: Scalar = 0.999, eps: Scalar = 1e-8, momentum_decay: Scalar = 4e-3
) -> optax.GradientTransformation:
    """NAdam (Dozat 2016) with the rising momentum of its section 2 and of torch, which optax.nadam leaves out.

    Args:
        b1: decay of the first moment, which the momentum rises to.
        b2: decay of the second moment.
        eps: added to its root.
        momentum_decay: how fast the momentum b1 * (1 - 0.96 ** (t * momentum_decay) / 2) rises.
    """

    def init(params: Params) -> ScaleByNAdamState:
        zeros = optax.tree.zeros_like(params)
        one = jnp.ones((), jnp.promote_types(optax.tree.dtype(params, "highest"), jnp.float32))
        return ScaleByNAdamState(jnp.zeros((), jnp.int32), one, zeros, optax.tree.zeros_like(params))

    def update(updates: Grads, state: OptState, params: Params = None) -> tuple[Grads, ScaleByNAdamState]:
        del params
        count = jnp.asarray(optax.safe_increment(state.count))
        t = count.astype(state.momenta.dtype)
        now, then = (b1 * (1 - 0.5 * 0.96 ** (s * momentum_decay)) for s in (t, t + 1))
        momenta = state.momenta * now
        mu = optax.tree.update_moment(updates, state.mu, b1, 1)
        nu = optax.tree.update_moment_per_elem_norm(updates, state.nu, b2, 2)
        ahead, behind = then / (1 - momenta * then), (1 - now) / (1 - momenta)
        updates = jax.tree.map(
            lambda g, m, v: (ahead * m + behind * g) / (jnp.sqrt(v) + eps),
            updates,
            mu,
            optax.tree.bias_correction(nu, b2, count),
        )
        return updates, ScaleByNAdamState(count, momenta, mu, nu)

    return optax.GradientTransformation(init, update)


def scale_by_root_of_sum(initial: float, eps: float) -> optax.GradientTransformation:
    """Adagrad as torch has it: eps is added to the root of the sum of squares, where optax adds it under the root.

    Args:
        initial: what the sums start from.
        eps: added to their root.
    """

    def init(params: Params) -> optax.ScaleByRssState:
        return optax.ScaleByRssState(optax.tree.full_like(params, initial))

    def update(updates: Grads, state: OptState, params: Params = None) -> tuple[Grads, optax.ScaleByRssState]:
        del params
        sums = jax.tree.map(lambda g, s: s + jnp.square(jnp.abs(g)), updates, state.sum_of_squares)
        return jax.tree.map(lambda g, s: g / (jnp.sqrt(s) + eps), updates, sums), optax.ScaleByRssState(sums)

    return optax.GradientTransformation(init, update)


def scale_by_rprop(
    first: float, shrink: float, grow: float, smallest: float, largest: float
) -> optax.GradientTransformation:
    """Rprop (Riedmiller and Braun 1993) as torch has it; optax's takes each step one update later.

    Args:
        first: every element's first step size.
        shrink: factor on it where the gradient has turned; that element then takes no step.
        grow: factor on it where the gradient has not turned.
        smallest: lower bound of the step sizes.
        largest: upper bound.
    """

    def init(params: Params) -> optax.ScaleByRpropState:
        return optax.ScaleByRpropState(optax.tree.full_like(params, first), optax.tree.zeros_like(params))

    def update(updates: Grads, state: OptState, params: Params = None) -> tuple[Grads, optax.ScaleByRpropState]:
        del params
        turns = jax.tree.map(lambda g, b: jnp.sign(g) * jnp.sign(b), updates, state.prev_updates)
        sizes = jax.tree.map(
            lambda t, s: jnp.clip(s * jnp.where(t > 0, grow, jnp.where(t < 0, shrink, 1.0)), smallest, largest),
            turns,
            state.step_sizes,
        )
        updates = jax.tree.map(lambda t, g: jnp.where(t < 0, 0.0, g), turns, updates)
        return jax.tree.map(lambda g, s: jnp.sign(g) * s, updates, sizes), optax.ScaleByRpropState(sizes, updates)

    return optax.GradientTransformation(init, update)


def scale_by_bounded_trust_ratio(low: float, high: float) -> optax.GradientTransformation:
    """LAMB's ratio of each parameter's norm to its update's (You et al. 2020), between DeepSpeed's two bounds.

    The ratio is 1 where one of the norms is 0. optax's has no bounds.

    Args:
        low: DeepSpeed key `min_coeff`.
        high: DeepSpeed key `max_coeff`.
    """

    def scaled(update: jax.Array, param: jax.Array) -> jax.Array:
        of_param, of_update = optax.safe_norm(param, 0.0), optax.safe_norm(update, 0.0)
        either_is_zero = (of_param == 0) | (of_update == 0)
        ratio = jnp.clip(of_param / jnp.where(of_update == 0, 1.0, of_update), low, high)
        return update * jnp.where(either_is_zero, 1.0, ratio)

    return optax.stateless_with_tree_map(scaled)  # type: ignore[arg-type]
