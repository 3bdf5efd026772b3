"""Jaxprs: how to trace a function to one, open it, evaluate it, and apply one of its equations."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend import core as jex_core
from jax.extend import source_info_util
from jax.extend.core.primitives import custom_jvp_call_p, custom_vjp_call_p

from jzero.base.types import PyTree
from jzero.jaxpr.versions import without_dead_code

__all__ = [
    "Equation", "Jaxpr", "Program", "ShapedArray", "Subprogram", "Variable",
    "bind", "closed_jaxpr", "evaluate", "has_custom_rule", "subprogram", "trace",
]  # fmt: skip


class Variable(Protocol):
    """What an equation reads or makes, or a literal in its place; `aval` says shape and dtype."""

    aval: ShapedArray


class Equation(Protocol):
    """One equation of a jaxpr: what it reads and makes, and which names it was traced under."""

    invars: Sequence[Variable]
    outvars: Sequence[Variable]
    primitive: jex_core.Primitive
    params: dict[str, Any]
    effects: jex_core.Effects
    source_info: source_info_util.SourceInfo
    ctx: "_Context"

    def replace(self, *, params: dict[str, Any]) -> "Equation":
        """The same equation with other parameters."""
        ...


class _Context(Protocol):
    """The switches under which an equation was traced."""

    @property
    def manager(self) -> AbstractContextManager[None]:
        """Turns them on again."""
        ...


class Jaxpr(Protocol):
    """An open jaxpr: equations in order, between the variables that enter and those that leave."""

    constvars: Sequence[Variable]
    invars: Sequence[Variable]
    outvars: Sequence[Variable]
    eqns: Sequence[Equation]
    debug_info: jex_core.DebugInfo

    def replace(
        self,
        *,
        eqns: Sequence[Equation] = ...,
        invars: Sequence[Variable] = ...,
        outvars: Sequence[Variable] = ...,
        debug_info: jex_core.DebugInfo = ...,
    ) -> "Jaxpr":
        """The same jaxpr with some parts exchanged."""
        ...


class Subprogram(NamedTuple):
    """A jaxpr and the values of its constants."""

    jaxpr: Jaxpr
    consts: Sequence[jax.Array]


Program: TypeAlias = Jaxpr | jex_core.ClosedJaxpr | Subprogram
"""A jaxpr, closed or open, or a `Subprogram`."""


def subprogram(program: Program) -> Subprogram:
    """Opens a jaxpr found in an equation's parameters, whether or not it is closed."""
    consts = getattr(program, "consts", ())
    return Subprogram(cast(Jaxpr, getattr(program, "jaxpr", program)), consts)


def trace(fn: Callable[..., PyTree], *args: PyTree) -> tuple[Subprogram, PyTree]:
    """Traces `fn` to a jaxpr without dead code.

    Args:
        fn: a function of pytrees.
        *args: arrays, tracers or `jax.ShapeDtypeStruct`s.

    Returns:
        The jaxpr, with one variable per leaf of `args`, and the pytree of output shapes.
    """
    closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    jaxpr, consts, _ = without_dead_code(closed, [True] * len(closed.jaxpr.outvars), keep_inputs=True)
    return Subprogram(cast(Jaxpr, jaxpr), consts), out_shape


def closed_jaxpr(program: Subprogram) -> jex_core.ClosedJaxpr:
    """Puts a jaxpr and its constants together again."""
    return jex_core.ClosedJaxpr(cast(jex_core.Jaxpr, program.jaxpr), program.consts)


def evaluate(program: Subprogram, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Evaluates a jaxpr."""
    return [_array(x) for x in jex_core.jaxpr_as_fun(closed_jaxpr(program))(*operands)]


def bind(eqn: Equation, operands: Sequence[jax.Array]) -> list[jax.Array]:
    """Applies an equation's primitive to new operands, under the equation's own context and name."""
    if has_custom_rule(eqn):  # a constant is an array to the user's own code too
        operands = [_array(x) for x in operands]
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack), eqn.ctx.manager:
        outs = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]


def has_custom_rule(eqn: Equation) -> bool:
    """Whether its derivative is the user's own code."""
    return eqn.primitive in (custom_jvp_call_p, custom_vjp_call_p)


def _array(value: jax.Array | np.ndarray | float) -> jax.Array:
    """A constant of a jaxpr, which JAX keeps as NumPy's or Python's, as the array that it was in the traced code."""
    return value if isinstance(value, jax.Array) else jnp.asarray(value)
