"""Recognises uses of parameters that compute the same, such as those of the layers of a model that is not scanned.

They share one unit's computation, which JAX then differentiates once.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.extend import core as jex_core

from jzero.gather.unit.deferred import DeferredParam
from jzero.jaxpr import compat


def structural_key(eqn: Any, operands: Sequence[Any]) -> Hashable:
    """What two uses of parameters have in common if they compute the same, of other parameters of the same layouts.

    Args:
        eqn: the equation.
        operands: `DeferredParam` where the operand is a parameter; for data, whether a gradient may flow to it.

    Returns:
        A key, equal for such uses. Scopes of names belong to it, so that profiles and explanations stay exact.
    """
    leaves = sorted({x.leaf for x in operands if isinstance(x, DeferredParam)})
    rank = {leaf: i for i, leaf in enumerate(leaves)}
    anonymous = lambda x: (replace(x, leaf=rank[x.leaf], name="", replay=()), *map(_equation, x.replay))
    return _equation(eqn), tuple(anonymous(x) if isinstance(x, DeferredParam) else x is True for x in operands)


def _equation(eqn: Any) -> Hashable:
    """An equation without its variables."""
    params = tuple((name, _value(value)) for name, value in sorted(eqn.params.items()))
    avals = tuple(v.aval for v in (*eqn.invars, *eqn.outvars))
    return eqn.primitive, params, avals, eqn.ctx, str(eqn.source_info.name_stack)


def _value(value: Any) -> Hashable:
    if isinstance(value, (jex_core.Jaxpr, jex_core.ClosedJaxpr)):
        return _program(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_value, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


def _program(program: Any) -> Hashable:
    """A jaxpr with variables numbered as they come."""
    jaxpr, consts = compat.subprogram(program)
    numbers: dict[Any, int] = {}
    number = lambda v: _literal(v) if isinstance(v, jex_core.Literal) else numbers.setdefault(v, len(numbers))
    wiring = [tuple(map(number, (*jaxpr.constvars, *jaxpr.invars)))]
    wiring += [tuple(map(number, (*eqn.invars, *eqn.outvars))) for eqn in jaxpr.eqns]
    wiring.append(tuple(map(number, jaxpr.outvars)))
    return tuple(map(id, consts)), tuple(wiring), tuple(map(_equation, jaxpr.eqns))


def _literal(v: Any) -> Hashable:
    return v.aval, np.asarray(v.val).tobytes()  # which a hash may lack, or have alike for 0.0 and -0.0
