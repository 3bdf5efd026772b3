"""The curves that schedules are made of, exact to fp32's last digits over any number of steps.

Differences of steps are taken in int32, where they are exact, and only shares of a whole become fp32.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Shape = Callable[[jax.Array], jax.Array]
"""From a step, `int32[...]`, to a rate or a factor, `float32[...]`."""


def share(done: jax.Array, whole: float) -> jax.Array:
    """The share done / whole in [0, 1]."""
    return jnp.clip(done.astype(jnp.float32) / max(whole, 1), 0.0, 1.0)


def fall(remaining: jax.Array) -> jax.Array:
    """Half a cosine from 1 to 0 over the remaining share; (1 + cos(pi p)) / 2 would lose all digits near its end."""
    return jnp.square(jnp.sin(remaining * (math.pi / 2)))


def waves(remaining: jax.Array, n_cycles: float) -> jax.Array:
    """A cosine of so many whole waves that starts at its top, in [0, 1]; half a wave is `fall`."""
    if n_cycles == 0.5:
        return fall(remaining)
    phase = (1 - remaining) * n_cycles
    return jnp.square(jnp.cos((phase - jnp.round(phase)) * math.pi))


def power(base: float, exponent: jax.Array) -> jax.Array:
    """base ** exponent; raising fp32's nearest number to 0.999 would add up its error with every step."""
    return jnp.exp(exponent.astype(jnp.float32) * math.log(base))


def between(low: float, high: float, height: jax.Array) -> jax.Array:
    """The value at a height in [0, 1] between two bounds."""
    return low + (high - low) * height
