"""Recognises uses of parameters that compute the same, such as those of the layers of a model that is not scanned.

They share one unit's computation, which JAX then differentiates once.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from jzero.gather.unit.deferred import DeferredParam
from jzero.jaxpr import Equation, equation_key


def structural_key(eqn: Equation, operands: Sequence[object]) -> Hashable:
    """What two uses of parameters have in common if they compute the same, of other parameters of the same layouts.

    Args:
        eqn: the equation.
        operands: `DeferredParam` where the operand is a parameter; for data, whether a gradient may flow to it.

    Returns:
        A key, equal for such uses. Scopes of names belong to it, so that profiles and explanations stay exact.
    """
    leaves = sorted({x.leaf for x in operands if isinstance(x, DeferredParam)})
    rank = {leaf: i for i, leaf in enumerate(leaves)}
    anonymous = lambda x: (replace(x, leaf=rank[x.leaf], name="", replay=()), *map(equation_key, x.replay))
    return equation_key(eqn), tuple(anonymous(x) if isinstance(x, DeferredParam) else x is True for x in operands)
