"""Lookups in a parameter, differentiated so that nothing of the gradient exists before the backward pass comes to it.

JAX adds the gradient of a lookup into zeros of the table's size. They depend on nothing, so that a scheduler may make
them at the start of the step; for the token embedding of a language model that is the largest array there is.
"""

import jax
import jax.numpy as jnp

from jzero.jaxpr import Equation, bind
from jzero.jaxpr.params import lookup_of


def lookup(eqn: Equation, table: jax.Array, indices: jax.Array) -> jax.Array:
    """Applies a `gather` equation (indexing, `jnp.take`) to full operands; value and derivative are JAX's own."""
    given = lookup_of(eqn)
    numbers = given.dimension_numbers

    def plain(table: jax.Array, indices: jax.Array) -> jax.Array:
        return bind(eqn, [table, indices])[0]

    def backward(indices: jax.Array, grad: jax.Array) -> tuple[jax.Array, None]:
        zero, grad = jax.lax.optimization_barrier((jnp.zeros((), table.dtype), grad))
        added = jax.lax.scatter_add(
            jnp.broadcast_to(zero, table.shape),
            indices,
            grad,
            jax.lax.ScatterDimensionNumbers(
                update_window_dims=numbers.offset_dims,
                inserted_window_dims=numbers.collapsed_slice_dims,
                scatter_dims_to_operand_dims=numbers.start_index_map,
                operand_batching_dims=numbers.operand_batching_dims,
                scatter_indices_batching_dims=numbers.start_indices_batching_dims,
            ),
            indices_are_sorted=given.indices_are_sorted,
            unique_indices=given.unique_indices,
            mode=given.mode,
        )
        return added, None

    call = jax.custom_vjp(plain)
    call.defvjp(lambda table, indices: (plain(table, indices), indices), backward)
    return call(table, indices)
