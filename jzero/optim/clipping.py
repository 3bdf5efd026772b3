"""Clipping by global norm, as DeepSpeed does it, and gradients times one number."""

import jax
import jax.numpy as jnp

from jzero.base.types import Grads


def clip_divisor(norm: jax.Array, max_norm: float) -> jax.Array | None:
    """What gradients are divided by so that their norm is at most `max_norm`; None if nothing clips.

    Args:
        norm: `f32[]`, of all gradients.
        max_norm: DeepSpeed key `gradient_clipping`; 0 for no clipping.

    Returns:
        (norm + 1e-6) / max_norm where that exceeds 1, as DeepSpeed has it.

    Example:
        >>> float(clip_divisor(jnp.float32(3), 2.0)), clip_divisor(jnp.float32(3), 0.0)
        (1.500000..., None)
    """
    return jnp.maximum((norm + 1e-6) / max_norm, 1.0) if max_norm else None


def divided(grad: jax.Array, divisor: jax.Array | None) -> jax.Array:
    """A gradient of any dtype divided by what `clip_divisor` gave."""
    return grad if divisor is None else grad / divisor.astype(grad.dtype)


def times(grads: Grads, factor: jax.Array) -> Grads:
    """Gradients of any dtype, complex ones included, times one real number."""
    return jax.tree.map(lambda g: g * factor.astype(g.dtype), grads)
