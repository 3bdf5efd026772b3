"""Products with a parameter, differentiated so that the gradient comes out in the parameter's own order.

JAX takes the gradient of `x @ w` as a product in the other order and transposes it. Where the gradient then goes into a
collective, the transposition cannot move out of the way, and the product becomes one for which CPU libraries have no
kernel: half again as slow, measured on simulated devices.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jzero.gather.unit.lookups import lookup
from jzero.jaxpr import Equation, bind, name_of
from jzero.jaxpr.params import dot_of
from jzero.jaxpr.primitives import DOT, GATHER


def apply_primitive(eqn: Equation, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Applies an equation to full operands; the value is that of `jaxpr.bind`, and so is the derivative."""
    if name_of(eqn) == GATHER and jnp.issubdtype(operands[0].dtype, jnp.inexact):
        return [lookup(eqn, *operands)]
    if name_of(eqn) == DOT and (order := _order_of_gradient(eqn)):
        return [_product(eqn, order, *operands)]
    return bind(eqn, operands)


def _order_of_gradient(eqn: Equation) -> str:
    """How the left operand and the gradient multiply to the gradient of the right one without a transposition."""
    dot = dot_of(eqn)
    kept = [right for _, right in sorted(zip(dot.contract_left, dot.contract_right, strict=True))]
    n_dims = len(eqn.invars[1].aval.shape)
    free = [d for d in range(n_dims) if d not in (*dot.contract_right, *dot.batch_right)]
    orders = {"left first": [*dot.batch_right, *kept, *free], "gradient first": [*dot.batch_right, *free, *kept]}
    return next((order for order, dims in orders.items() if dims == list(range(n_dims))), "")


def _product(eqn: Equation, order: str, left: jax.Array, right: jax.Array) -> jax.Array:
    dot = dot_of(eqn)
    n_batch = len(dot.batch_left)
    free_left = [d for d in range(left.ndim) if d not in (*dot.contract_left, *dot.batch_left)]
    summed, batches = (
        (free_left, list(range(n_batch, n_batch + len(free_left)))),
        (list(dot.batch_left), list(range(n_batch))),
    )

    def plain(left, right):
        return bind(eqn, [left, right])[0]

    def backward(operands, grad):
        left, right = operands
        grad_left = jax.vjp(lambda x: plain(x, right), left)[1](grad)[0]
        # The parameter is read first, so that it is gone before its gradient is there.
        grad_left, grad = jax.lax.optimization_barrier((grad_left, grad))
        first, second, dims = left, grad, (summed, batches)
        if order == "gradient first":
            first, second, dims = grad, left, ((summed[1], summed[0]), (batches[1], batches[0]))
        grad_right = jax.lax.dot_general(
            first,
            second,
            dims,
            precision=dot.precision,
            preferred_element_type=dot.preferred_element_type,
        )
        return grad_left, grad_right.astype(right.dtype)

    product = jax.custom_vjp(plain)
    product.defvjp(lambda left, right: (plain(left, right), (left, right)), backward)
    return product(left, right)
