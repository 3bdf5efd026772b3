"""Every difference between the supported JAX versions, in one place (0.10 on Python 3.11 to 0.12 on newer ones)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend import core as jex_core
from jax.extend import source_info_util
from jax.interpreters import partial_eval as pe

JAX_VERSION = tuple(int(part) for part in jax.__version__.split(".")[:2])


class Subprogram(NamedTuple):
    """A jaxpr and the values of its constants."""

    jaxpr: Any
    consts: Sequence[Any]


def subprogram(jaxpr: Any) -> Subprogram:
    """Opens a jaxpr found in an equation's parameters, whether or not it is closed."""
    consts = getattr(jaxpr, "consts", ())
    return Subprogram(getattr(jaxpr, "jaxpr", jaxpr), consts)


def trace(fn: Callable, *args: Any) -> tuple[Subprogram, Any]:
    """Traces `fn` to a jaxpr without dead code.

    Args:
        fn: a function of pytrees.
        *args: arrays, tracers or `jax.ShapeDtypeStruct`s.

    Returns:
        The jaxpr, with one variable per leaf of `args`, and the pytree of output shapes.
    """
    closed, out_shape = jax.make_jaxpr(fn, return_shape=True)(*args)
    return _without_dead_code(closed, [True] * len(closed.jaxpr.outvars), keep_inputs=True)[0], out_shape


def restrict(program: Subprogram, live: Sequence[bool]) -> tuple[Subprogram, list[bool]]:
    """A jaxpr reduced to some of its outputs and the inputs they depend on.

    Args:
        program: a jaxpr and its constants.
        live: which outputs are wanted.

    Returns:
        The smaller jaxpr, and which inputs remain.
    """
    smaller, used = _without_dead_code(jex_core.ClosedJaxpr(program.jaxpr, program.consts), live, keep_inputs=False)
    # JAX 0.10 takes a Pallas kernel for something with an effect, and never drops it.
    jaxpr, needed, eqns = smaller.jaxpr, set(smaller.jaxpr.outvars), []
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            eqns.append(eqn)
            needed.update(v for v in eqn.invars if not isinstance(v, jex_core.Literal))
    invars = [v for v in jaxpr.invars if v in needed]
    remaining = iter(jaxpr.invars)
    used = [u and next(remaining) in needed for u in used]
    debug_info = jaxpr.debug_info._replace(arg_names=("",) * len(invars))
    return Subprogram(jaxpr.replace(eqns=eqns[::-1], invars=invars, debug_info=debug_info), smaller.consts), used


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


def run(program: Subprogram, operands: Sequence[Any]) -> list[Any]:
    """Evaluates a jaxpr."""
    return jex_core.jaxpr_as_fun(jex_core.ClosedJaxpr(program.jaxpr, program.consts))(*operands)


def _without_dead_code(closed: Any, live: Sequence[bool], *, keep_inputs: bool) -> tuple[Subprogram, list[bool]]:
    """A jaxpr without what its live outputs do not need, and which inputs that left in use."""
    if JAX_VERSION >= (0, 12):
        jaxpr, _, used = pe.dce_jaxpr_consts(closed, live, instantiate=keep_inputs)
        return subprogram(jaxpr), used
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, live, instantiate=keep_inputs)
    return Subprogram(jaxpr, closed.consts), used


def scan_arity(eqn: Any) -> tuple[int, int]:
    """The number of constants and of carried values among the operands of a `scan` equation."""
    if "ft_in" in eqn.params:
        consts, carry, _ = eqn.params["ft_in"].unpack()
        return len(consts), len(carry)
    return eqn.params["num_consts"], eqn.params["num_carry"]


def bind(eqn: Any, operands: Sequence[Any]) -> list[Any]:
    """Applies an equation's primitive to new operands, under the equation's own context and name."""
    name_stack = source_info_util.current_name_stack() + eqn.source_info.name_stack
    with source_info_util.user_context(eqn.source_info.traceback, name_stack=name_stack), eqn.ctx.manager:
        outs = eqn.primitive.bind(*operands, **eqn.primitive.get_bind_params(eqn.params))
    return list(outs) if eqn.primitive.multiple_results else [outs]


def inner_jaxprs(eqn: Any) -> list[Any]:
    """The jaxprs among the parameters of an equation."""
    kinds = (jex_core.Jaxpr, jex_core.ClosedJaxpr)
    values = [v for p in eqn.params.values() for v in (p if isinstance(p, (tuple, list)) else [p])]
    return [v for v in values if isinstance(v, kinds)]


def overlap_options(overlap: bool) -> dict[str, Any]:
    """XLA's options for collectives beside compute on GPUs.

    XLA's own pipelining of loops is off: it compiles their bodies several times, and
    `jzero.gather.schedule.loop_pipeline` does without.

    Args:
        overlap: whether a gather and a scatter may be under way at once; one at a time takes the least memory.

    Returns:
        Options for `jax.jit(compiler_options=...)`.
    """
    limit = {"xla_gpu_experimental_parallel_collective_overlap_limit": 2 if overlap else 1}
    if JAX_VERSION >= (0, 12):
        kinds = ("xla_gpu_pipeline_all_gather", "xla_gpu_pipeline_reduce_scatter")
        return limit | dict.fromkeys(kinds, "COLLECTIVE_PIPELINING_MODE_OFF")
    kinds = ("xla_gpu_enable_pipelined_all_gather", "xla_gpu_enable_pipelined_reduce_scatter")
    return limit | dict.fromkeys(kinds, False)
