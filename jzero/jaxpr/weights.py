"""Tells what a loss shows its model from what it only compares the model's results with."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from jzero.jaxpr.facts import follow
from jzero.jaxpr.primitives import CONVOLUTION, DOT, FLASH_ATTENTION, name_of
from jzero.jaxpr.program import Equation, Program, subprogram
from jzero.jaxpr.walk import every_equation


class _Origin(NamedTuple):
    """What a value was computed from: arrays of parameters or not, and which of the other inputs, by position."""

    of_params: bool
    inputs: frozenset[int]


def acted_on(program: Program, params: Collection[int]) -> frozenset[int]:
    """Finds the inputs that parameters act on: a product with a weight, the sum with a bias.

    What depends on parameters alone is a weight, and what meets one in an operation was shown to the model. Targets
    meet what the model predicts, which depends on its inputs too. Parameters that are single numbers, such as a learned
    temperature, are no weights, and a norm of the weights that is added to a loss acts on nothing.

    Args:
        program: a loss, a jaxpr.
        params: positions of those inputs that are parameters.

    Returns:
        Positions of inputs that are no parameters.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def loss(weight, x, y):
        ...     return ((x @ weight - y) ** 2).mean() + (weight**2).sum()
        >>> sorted(acted_on(jax.make_jaxpr(loss)(jnp.ones(3), jnp.ones((2, 3)), jnp.ones(2)), [0]))
        [1]
    """
    found: set[int] = set()

    def join(origins: Sequence[_Origin]) -> _Origin:
        inputs = frozenset[int]().union(*(origin.inputs for origin in origins))
        return _Origin(any(origin.of_params for origin in origins), inputs)

    def step(eqn: Equation, ins: list[_Origin]) -> None:
        gives_array = any(v.aval.ndim for v in eqn.outvars)
        if gives_array and any(origin.of_params and not origin.inputs for origin in ins):
            found.update(join(ins).inputs)

    origins = [
        _Origin(v.aval.ndim > 0, frozenset()) if i in params else _Origin(False, frozenset([i]))
        for i, v in enumerate(subprogram(program).jaxpr.invars)
    ]
    follow(program, origins, join, step)
    return frozenset(found)


def product_dtypes(program: Program) -> list[str]:
    """The dtypes of a program's matrix products, convolutions and attentions, in the order in which they come.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> product_dtypes(jax.make_jaxpr(jnp.dot)(jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.bfloat16)))
        ['bfloat16']
    """
    products = {DOT, CONVOLUTION, FLASH_ATTENTION}
    return [str(eqn.outvars[0].aval.dtype) for eqn, _, _ in every_equation(program) if name_of(eqn) in products]
