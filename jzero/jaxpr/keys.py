"""Keys that equations have in common if they compute the same, whatever their variables are called."""

from collections.abc import Hashable

import numpy as np
from jax.extend import core as jex_core

from jzero.jaxpr.params import is_program, params_key
from jzero.jaxpr.program import Equation, Program, Variable, subprogram


def equation_key(eqn: Equation) -> Hashable:
    """An equation without its variables. Scopes of names belong to it."""
    avals = tuple(v.aval for v in (*eqn.invars, *eqn.outvars))
    return eqn.primitive, params_key(eqn, _value), avals, eqn.ctx, str(eqn.source_info.name_stack)


def _value(value: object) -> Hashable:
    if is_program(value):
        return _program(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_value, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _program(program: Program) -> Hashable:
    """A jaxpr with variables numbered as they come."""
    jaxpr, consts = subprogram(program)
    numbers: dict[Variable, int] = {}
    number = lambda v: _literal(v) if isinstance(v, jex_core.Literal) else numbers.setdefault(v, len(numbers))
    wiring = [tuple(map(number, (*jaxpr.constvars, *jaxpr.invars)))]
    wiring += [tuple(map(number, (*eqn.invars, *eqn.outvars))) for eqn in jaxpr.eqns]
    wiring.append(tuple(map(number, jaxpr.outvars)))
    return tuple(map(id, consts)), tuple(wiring), tuple(map(equation_key, jaxpr.eqns))


def _literal(v: jex_core.Literal) -> Hashable:
    return v.aval, np.asarray(v.val).tobytes()  # which a hash may lack, or have alike for 0.0 and -0.0
