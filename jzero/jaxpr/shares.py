"""Marks a piece of a program of whose products only a part is needed, for those who count them.

Attention with a mask computes all scores and hides some; how many a causal mask leaves is not in its products.
"""

import re
from collections.abc import Callable
from fractions import Fraction
from typing import ParamSpec, TypeVar

import jax

from jzero.jaxpr.primitives import JIT, name_of
from jzero.jaxpr.program import Equation

Taken = ParamSpec("Taken")
Given = TypeVar("Given")

_NAME = re.compile(r"of_which_(\d+)_in_(\d+)")


def marked(function: Callable[Taken, Given], share: Fraction) -> Callable[Taken, Given]:
    """The same function; what it is traced to says which share of its products is needed.

    Example:
        >>> import jax.numpy as jnp
        >>> program = jax.make_jaxpr(marked(jnp.sin, Fraction(3, 8)))(1.0)
        >>> share_needed(program.jaxpr.eqns[0])
        Fraction(3, 8)
    """

    def run(*args: Taken.args, **kwargs: Taken.kwargs) -> Given:
        return function(*args, **kwargs)

    run.__name__ = f"of_which_{share.numerator}_in_{share.denominator}"
    return jax.jit(run)


def share_needed(eqn: Equation) -> Fraction:
    """Which share of the products inside an equation is needed; all of them unless it is marked."""
    found = _NAME.fullmatch(eqn.params["name"]) if name_of(eqn) == JIT else None
    return Fraction(int(found[1]), int(found[2])) if found else Fraction(1)
