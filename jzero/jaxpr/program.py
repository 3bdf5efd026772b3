"""Jaxprs: how to trace a function to one, open it, evaluate it, and apply one of its equations."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
from jax.core import ShapedArray
from jax.extend import core as jex_core
from jax.extend import source_info_util

from jzero.base.types import PyTree
from jzero.jaxpr.versions import without_dead_code

__all__ = ["Equation", "Program", "ShapedArray", "Subprogram", "Variable", "bind", "evaluate", "subprogram", "trace"]

Program: TypeAlias = Any
"""A jaxpr, closed or open, or a `Subprogram`."""


class Variable(Protocol):
    """What an equation reads or makes, or a literal in its place; `aval` says shape and dtype."""

    aval: Any


class Equation(Protocol):
    """One equation of a jaxpr: what it reads and makes, and which names it was traced under."""

    invars: Sequence[Variable]
    outvars: Sequence[Variable]
    primitive: Any
    params: dict[str, Any]
    effects: Any
    source_info: Any
    ctx: Any


class Subprogram(NamedTuple):
    """A jaxpr and the values of its constants."""

    jaxpr: Any
    consts: Sequence[Any]


def subprogram(program: Program) -> Subprogram:
    """Opens a jaxpr found in an equation's parameters, whether or not it is closed."""
    consts = getattr(program, "consts", ())
    return Subprogram(getattr(program, "jaxpr", program), consts)


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
    return Subprogram(jaxpr, consts), out_shape


def evaluate(program: Subprogram, operands: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr."""
    return jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(program.jaxpr, program.consts))(*operands)


def bind(eqn: Equation, operands: Sequence[Any]) -> list[Any]:
    """Applies an equation's primitive to new operands, under the equation's own context and name."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack), eqn.ctx.manager:
        outs = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]
