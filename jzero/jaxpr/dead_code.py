"""Reduces jaxprs to some of their outputs and what these depend on."""

from collections.abc import Callable, Sequence
from typing import cast

from jax.extend import core as jex_core

from jzero.jaxpr.program import Jaxpr, Subprogram, closed_jaxpr
from jzero.jaxpr.versions import without_dead_code


def restrict(program: Subprogram, live: Sequence[bool]) -> tuple[Subprogram, list[bool]]:
    """A jaxpr reduced to some of its outputs and the inputs they depend on.

    Args:
        program: a jaxpr and its constants.
        live: which outputs are wanted.

    Returns:
        The smaller jaxpr, and which inputs remain.
    """
    smaller, consts, used = without_dead_code(closed_jaxpr(program), live, keep_inputs=False)
    jaxpr = cast(Jaxpr, smaller)
    # JAX 0.10 takes a Pallas kernel for something with an effect, and never drops it.
    needed, eqns = {v for v in jaxpr.outvars if not isinstance(v, jex_core.Literal)}, []
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            eqns.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, jex_core.Literal))
    invars = [v for v in jaxpr.invars if v in needed]
    remaining = iter(jaxpr.invars)
    used = [u and next(remaining) in needed for u in used]
    debug_info = jaxpr.debug_info._replace(arg_names=("",) * len(invars))
    return Subprogram(jaxpr.replace(eqns=eqns[::-1], invars=invars, debug_info=debug_info), consts), used


def parts(program: Subprogram) -> Callable[[Sequence[int]], tuple[Subprogram, list[int]]]:
    """Takes a jaxpr apart; quicker than `restrict` where the parts are small.

    Returns:
        A function of the numbers of some outputs. It gives the part that they need, whose outputs come in the given
        order, and the numbers of the inputs that remain.
    """
    jaxpr = program.jaxpr
    makers = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.outvars}

    def part(outputs: Sequence[int]) -> tuple[Subprogram, list[int]]:
        wanted = [jaxpr.outvars[o] for o in outputs]
        waiting, eqns = [v for v in wanted if not isinstance(v, jex_core.Literal)], set()
        seen = set(waiting)
        while waiting:
            if (i := makers.get(waiting.pop())) is not None and i not in eqns:
                eqns.add(i)
                fresh = {v for v in jaxpr.eqns[i].invars if not isinstance(v, jex_core.Literal)} - seen
                seen |= fresh
                waiting += fresh
        reads = [i for i, v in enumerate(jaxpr.invars) if v in seen]
        invars = [jaxpr.invars[i] for i in reads]
        info = jaxpr.debug_info._replace(arg_names=("",) * len(invars), result_paths=("",) * len(wanted))
        kept = [jaxpr.eqns[i] for i in sorted(eqns)]
        smaller = jaxpr.replace(eqns=kept, invars=invars, outvars=wanted, debug_info=info)
        exact, used = restrict(Subprogram(smaller, program.consts), [True] * len(wanted))
        return exact, [i for i, u in zip(reads, used, strict=True) if u]

    return part
