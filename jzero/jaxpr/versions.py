"""Every difference between the supported JAX versions, in one place (0.10 on Python 3.11 to 0.12 on newer ones).

Parameters that a primitive has in some versions only are in `jzero.jaxpr.params`, names in `jzero.jaxpr.primitives`.
"""

from collections.abc import Sequence
from typing import cast

import jax
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe

JAX_VERSION = tuple(int(part) for part in jax.__version__.split(".")[:2])


def without_dead_code(
    closed: jex_core.ClosedJaxpr, live: Sequence[bool], *, keep_inputs: bool
) -> tuple[jex_core.Jaxpr, Sequence[jax.Array], list[bool]]:
    """A closed jaxpr without what its live outputs do not need, its constants, and which inputs that left in use."""
    if JAX_VERSION >= (0, 12):
        jaxpr, _, used = pe.dce_jaxpr_consts(cast(jex_core.Jaxpr, closed), live, instantiate=keep_inputs)
        return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ()), used
    jaxpr, used = pe.dce_jaxpr(closed.jaxpr, live, instantiate=keep_inputs)
    return jaxpr, closed.consts, used


def overlap_options(overlap: bool) -> dict[str, int | str]:
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
