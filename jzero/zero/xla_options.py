"""Options that reach XLA with one program, never through process-wide flags."""

from typing import TypeAlias

import jax.numpy as jnp
from jax.sharding import Mesh
from jax.typing import DTypeLike

from jzero.config import ResolvedConfig
from jzero.jaxpr import overlap_options
from jzero.sharding.mesh import platform
from jzero.zero.precision import Precision
from jzero.zero.stages import Gather, stage_plan

CompilerOptions: TypeAlias = dict[str, bool | int | str]
"""Options of XLA by name, for `jax.jit(compiler_options=...)`."""

COMBINE_UP_TO_BYTES = 32 * 2**20
"""Collectives of less data than this are merged into one: below it latency costs more than the bytes do."""


PATIENCE = {
    "xla_gpu_executable_terminate_timeout_seconds": 300,
    "xla_gpu_first_collective_call_terminate_timeout_seconds": 300,
}
"""How long the GPUs of a process wait for each other before XLA ends it. Its own 30 and 40 s are passed where one of
them autotunes longer, reads its kernels from a slow disk, or shares its host with others."""


GATHER_UP_TO_BYTES = 512 * 2**20
"""The same for gathers at use that overlap with compute. Barriers in the program already say which of them start
together, so that merging never makes one start earlier; few large ones need fewer products to run beside."""


def compiler_options(mesh: Mesh, config: ResolvedConfig, precision: Precision, layer_size: int = 0) -> CompilerOptions:
    """Chooses the options for a program on this mesh.

    Args:
        mesh: the devices the program is for.
        config: a resolved configuration.
        precision: its dtypes.
        layer_size: elements that one iteration of the loops over layers gathers; 0 without such loops.

    Returns:
        Options for `jax.jit(compiler_options=...)`; none where the devices are not GPUs.
    """
    if platform(mesh) not in ("gpu", "cuda"):
        return {}
    overlap = overlap_options(config.zero_optimization.overlaps_comm)
    return _combining(mesh, config, precision, layer_size) | overlap | PATIENCE


def _combining(mesh: Mesh, config: ResolvedConfig, precision: Precision, layer_size: int) -> dict[str, int]:
    """Up to which size collectives are merged, from `reduce_bucket_size` and `allgather_bucket_size`.

    XLA measures an all-gather by what it makes, but a reduce-scatter by the shard that remains, so that with its
    default threshold all gradients of a layer wait for each other and are whole, in fp32, at the same time. Measured by
    what it reads instead, a large gradient is scattered as soon as it is there.
    """
    zero = config.zero_optimization
    reduced = _bytes(zero.reduce_bucket_size, precision.reduce)
    compute = precision.compute or jnp.float32
    if stage_plan(zero.stage).gather is not Gather.AT_USE:
        gathered = _bytes(zero.allgather_bucket_size, compute)
    elif not zero.overlaps_comm:
        gathered = COMBINE_UP_TO_BYTES
    else:
        # Exactly one layer: the first gathers of two loops, taken out of them, would otherwise become one, and the
        # second loop's weights would be there from the start. DeepSpeed's bucket size has no say at this stage.
        gathered = _bytes(layer_size, compute) if layer_size else GATHER_UP_TO_BYTES
    return {
        "xla_gpu_all_gather_combine_threshold_bytes": gathered,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": reduced // mesh.shape["shard"],
        "xla_gpu_all_reduce_combine_threshold_bytes": reduced,
    }


def _bytes(n_elements: int | None, dtype: DTypeLike) -> int:
    """The size of a bucket; XLA counts in 64 bits."""
    return COMBINE_UP_TO_BYTES if n_elements is None else min(n_elements * jnp.dtype(dtype).itemsize, 2**63 - 1)
