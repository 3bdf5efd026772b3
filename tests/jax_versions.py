"""What differs from one version of JAX to the next: the only place in the tests that asks for the version."""

import jax

VERSION = jax.__version_info__[:2]


def since(major: int, minor: int, then, before):
    """One value from a version of JAX on, another before it."""
    return then if (major, minor) <= VERSION else before


PIPELINING_OFF = since(
    0,
    12,
    {
        "xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_OFF",
        "xla_gpu_pipeline_reduce_scatter": "COLLECTIVE_PIPELINING_MODE_OFF",
    },
    {"xla_gpu_enable_pipelined_all_gather": False, "xla_gpu_enable_pipelined_reduce_scatter": False},
)
"""XLA's options that keep it from pipelining loops."""

PIPELINED_GATHERS = since(
    0,
    11,
    {"xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_ON"},
    {"xla_gpu_enable_pipelined_all_gather": True},
)
"""The option that makes it pipeline gathers."""

CPU_PEAK_TOLERANCE = since(0, 12, {("llama", 3): 0.2}, {})
"""How far the closed form's peak may be off on CPUs, by model and stage, where that is more than usual.

CPU programs keep barriers since 0.12, so that the zeros for a lookup's gradient come later.
"""

OPTIMIZED_FUSIONS = since(0, 11, {}, {"xla_cpu_use_fusion_emitters": True})
"""XLA's option for the emitter of fusions that makes the quicker code, where the root's conftest.py chose the other."""


def kernel_cache(file: str) -> dict[str, str | bool]:
    """XLA's options for keeping assembled GPU kernels in a file."""
    needed = since(0, 12, {}, {"xla_gpu_enable_llvm_module_compilation_parallelism": True})
    return {"xla_gpu_kernel_cache_file": file, **needed}
