"""How many floating-point operations an equation's products take."""

import math

from jzero.jaxpr.params import convolution_of, dot_of, flash_attention_of, ragged_contraction
from jzero.jaxpr.primitives import CONVOLUTION, DOT, FLASH_ATTENTION, FLASH_ATTENTION_BACKWARD, RAGGED_DOT, name_of
from jzero.jaxpr.program import Equation


def product_flops(eqn: Equation) -> int:
    """Operations of a matrix product, a convolution or cuDNN's attention, a multiply-add being two; else 0.

    Attention counts every pair of a query and a key, whether or not its mask shows it.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> program = jax.make_jaxpr(jnp.dot)(jnp.ones((4, 8)), jnp.ones((8, 2)))
        >>> product_flops(program.jaxpr.eqns[0])
        128
    """
    name = name_of(eqn)
    if name in (FLASH_ATTENTION, FLASH_ATTENTION_BACKWARD):
        attention = flash_attention_of(eqn)
        return 2 * attention.n_products * eqn.invars[0].aval.size * eqn.invars[1].aval.shape[attention.keys_dim]
    if name not in (DOT, CONVOLUTION, RAGGED_DOT):
        return 0
    left, right, out = eqn.invars[0].aval, eqn.invars[1].aval, eqn.outvars[0].aval
    if name == CONVOLUTION:
        convolution = convolution_of(eqn)
        features = right.shape[convolution.out_features_dim]
        # Zeros put between the elements, as in gradients of strided convolutions, are not multiplied with.
        return 2 * out.size * right.size // features // convolution.dilation
    contracted = dot_of(eqn).contract_left if name == DOT else ragged_contraction(eqn)
    return 2 * out.size * math.prod(left.shape[d] for d in contracted)
