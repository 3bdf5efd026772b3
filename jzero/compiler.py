"""Options that reach XLA with one program, never through process-wide flags."""

from jax.sharding import Mesh

COMBINE_UP_TO_BYTES = 32 * 2**20
"""Collectives of less data than this are merged into one: below it latency costs more than the bytes do."""


def compiler_options(mesh: Mesh) -> dict[str, int]:
    """Chooses the options for a program on this mesh.

    XLA measures an all-gather by what it makes, but a reduce-scatter by the shard that remains, so that with its
    default threshold all gradients of a layer wait for each other and are whole, in fp32, at the same time. Measured by
    what it reads instead, a large gradient is scattered as soon as it is there.

    Args:
        mesh: the devices the program is for.

    Returns:
        Options for `jax.jit(compiler_options=...)`; none where the devices are not GPUs.
    """
    if mesh.devices.flat[0].platform not in ("gpu", "cuda"):
        return {}
    return {
        "xla_gpu_all_gather_combine_threshold_bytes": COMBINE_UP_TO_BYTES,
        "xla_gpu_reduce_scatter_combine_threshold_bytes": COMBINE_UP_TO_BYTES // mesh.shape["shard"],
    }
