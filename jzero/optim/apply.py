"""One update with any optax transformation, whatever dtype parameters and state last in."""

import jax
import jax.numpy as jnp
import optax

from jzero.base.types import Grads, OptState, Params, PyTree


def apply_optimizer(
    optimizer: optax.GradientTransformationExtraArgs, grads: Grads, state: OptState, params: Params, loss: jax.Array
) -> tuple[Params, OptState]:
    """Updates parameters and state; what lasts in 16 bits is updated in fp32 and rounded once.

    Args:
        optimizer: the optax transformation.
        grads: pytree like `params`.
        state: the optimizer's state.
        params: the parameters.
        loss: f32[], for transformations that take it.

    Returns:
        New parameters and state, in the dtypes they had.

    Example:
        >>> import jax.numpy as jnp
        >>> optimizer, weights = optax.with_extra_args_support(optax.sgd(0.5)), jnp.ones(2, jnp.bfloat16)
        >>> new, _ = apply_optimizer(optimizer, jnp.ones(2), optimizer.init(weights), weights, jnp.float32(0))
        >>> new
        Array([0.5, 0.5], dtype=bfloat16)
    """
    wide = widened(params)
    grads = jax.tree.map(lambda g, p: g.astype(p.dtype), grads, wide)
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its int32 step count with floats
        updates, new_state = optimizer.update(grads, widened(state), wide, value=loss)
        new_params = optax.apply_updates(wide, updates)
    as_before = lambda new, old: new if new.dtype == old.dtype else new.astype(old.dtype)
    return jax.tree.map(as_before, new_params, params), jax.tree.map(as_before, new_state, state)


def widened(tree: PyTree) -> PyTree:
    """Floating leaves of fewer than 32 bits in fp32, to compute with; all others as they are.

    Example:
        >>> half, whole = widened([jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.int8)])
        >>> half.dtype.name, whole.dtype.name
        ('float32', 'int8')
    """
    narrow = lambda x: jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return jax.tree.map(lambda x: x.astype(jnp.float32) if narrow(x) else x, tree)


def keep(new: PyTree, old: PyTree, finite: jax.Array) -> PyTree:
    """Skip, don't branch: a step with a non-finite gradient selects the old state, on every device alike."""
    return jax.tree.map(lambda new, old: jax.lax.select(finite, new, old), new, old)
