"""Whether an optimizer's update of one parameter works element by element, and how to run it on a piece of one.

If it does, any slice of the parameter can be updated by itself, so that a large one passes through the device in
pieces. A trust ratio, a factored moment, a product of matrices or random noise needs the whole.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core

from jzero.jaxpr.params import called_program
from jzero.jaxpr.primitives import BROADCAST, CUSTOM_JVP, ELEMENTWISE, JIT, name_of
from jzero.jaxpr.program import Equation, Program, bind, subprogram
from jzero.jaxpr.walk import interpret


def is_elementwise(program: Program, large: Sequence[bool], shape: tuple[int, ...]) -> bool:
    """Whether every output of a program depends on its large inputs element by element, and otherwise on scalars.

    Args:
        program: a jaxpr, closed or open, or a `Subprogram`.
        large: for each input, whether it is one of those that would be sliced.
        shape: the shape that all of these have.

    Example:
        >>> x = jnp.ones((3, 4))
        >>> adds, sums = jax.make_jaxpr(lambda x: x + 2)(x), jax.make_jaxpr(lambda x: x / x.sum())(x)
        >>> is_elementwise(adds, [True], x.shape), is_elementwise(sums, [True], x.shape)
        (True, False)
    """
    results = _classify(program, large, shape)
    return results is not None and all(results)


def run_on_pieces(program: Program, operands: Sequence[jax.Array], shape: tuple[int, ...]) -> list[jax.Array]:
    """Evaluates an elementwise program whose large operands have been cut to another shape.

    Args:
        program: one that `is_elementwise`.
        operands: pieces in the place of large arrays, scalars as they were.
        shape: of the pieces.

    Example:
        >>> program = jax.make_jaxpr(lambda x, s: x * s + jnp.ones_like(x))(jnp.ones((3, 4)), 2.0)
        >>> run_on_pieces(program, [jnp.ones(2), jnp.float32(3)], (2,))[0]
        Array([4., 4.], dtype=float32)
    """

    def step(eqn: Equation, inputs: list[jax.Array]) -> list[jax.Array]:
        if inner := _inner(eqn):
            return run_on_pieces(inner, inputs, shape)
        if _spreads(eqn) and not jnp.ndim(inputs[0]):
            is_large = eqn.outvars[0].aval.shape != ()
            return [jnp.broadcast_to(inputs[0], shape) if is_large else inputs[0]]
        return bind(eqn, inputs)

    return interpret(program, operands, step)


def _classify(program: Program, large: Sequence[bool], shape: tuple[int, ...]) -> list[bool] | None:
    """For each output, whether it is as large as what is sliced; None if something is not elementwise."""
    jaxpr, _ = subprogram(program)
    known = dict(zip(jaxpr.invars, large, strict=True))
    read = lambda v: not isinstance(v, jex_core.Literal) and known.get(v, False)
    for eqn in jaxpr.eqns:
        flags, is_scalar = [read(v) for v in eqn.invars], all(v.aval.size == 1 for v in eqn.outvars)
        if inner := _inner(eqn):
            results = _classify(inner, flags, shape)
        elif not any(flags) and is_scalar:
            results = [False] * len(eqn.outvars)
        elif name_of(eqn) in ELEMENTWISE or (_spreads(eqn) and not eqn.invars[0].aval.shape):
            results = [True] * len(eqn.outvars) if all(v.aval.shape == shape for v in eqn.outvars) else None
        else:
            results = None
        if results is None:
            return None
        known.update(zip(eqn.outvars, results, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _spreads(eqn: Equation) -> bool:
    return name_of(eqn) == BROADCAST and len(eqn.invars) == 1


def _inner(eqn: Equation) -> Program | None:
    return called_program(eqn) if name_of(eqn) in (JIT, CUSTOM_JVP) else None
