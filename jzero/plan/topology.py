"""Meshes of GPUs that are not there: XLA compiles for them from a description, so a laptop builds a cluster's program.

The devices carry no memory and run nothing; they stand in shardings, and `jit(...).lower(...).compile()` yields the
program the real GPUs would run. Needs JAX's CUDA plugin (`pip install 'jzero[plan]'`), but no driver and no NVIDIA
library.
"""

import importlib.util
import re
from importlib import resources

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from jzero.errors import ConfigError, JzeroError
from jzero.mesh import make_mesh
from jzero.quiet import CUDA_PLUGINS

_DESCRIPTIONS = resources.files("jzero.plan") / "gpus"
GPUS: tuple[str, ...] = tuple(
    sorted(file.name.removesuffix(".txtpb") for file in _DESCRIPTIONS.iterdir() if file.name.endswith(".txtpb"))
)

# For `compile(compiler_options=...)`. Autotuning would time kernels on a device that is not there.
COMPILE_ONLY_OPTIONS: dict[str, int | str] = {"xla_gpu_autotune_level": 0}
if jax.__version_info__ >= (0, 12):
    # Its Triton kernels for small all-reduces abort the process for a scalar on 64 GPUs; without them NCCL reduces.
    COMPILE_ONLY_OPTIONS["xla_gpu_experimental_use_collective_kernels"] = ""


def gpu_mesh(gpu: str = "h100-80g", n_gpus: int = 64, gpus_per_node: int = 8) -> Mesh:
    """Builds a (replica=1, shard=n_gpus, tensor=1) mesh of compile-only GPUs.

    Args:
        gpu: name of a description in `jzero/plan/gpus`, one of `GPUS`.
        n_gpus: number of GPUs in the cluster.
        gpus_per_node: GPUs that share a node, and thus NVLink; a cluster smaller than one node is one node.

    Returns:
        A mesh as `jzero.mesh.make_mesh` builds it; for other axis sizes pass its `devices.flat` to that function.

    Raises:
        ConfigError: an unknown GPU, or nodes that would not be full.
        JzeroError: the CUDA plugin is missing or was not loaded.

    Example:
        >>> dict(gpu_mesh("h100-80g", n_gpus=16).shape)
        {'replica': 1, 'shard': 16, 'tensor': 1}
    """
    gpus_per_node = full_nodes(gpu, n_gpus, gpus_per_node)
    if not can_compile():
        raise JzeroError(
            "Compiling for GPUs that are not there needs JAX's CUDA plugin, which is not installed: "
            "pip install 'jzero[plan]'."
        )
    try:
        cluster = topologies.get_topology_desc(
            platform="cuda",
            target_config=(_DESCRIPTIONS / f"{gpu}.txtpb").read_text(),
            topology=f"1x{n_gpus // gpus_per_node}x{gpus_per_node}",  # slices x nodes x GPUs per node
        )
    except NotImplementedError as error:
        raise JzeroError(
            "JAX did not load its CUDA plugin: install the version that belongs to the installed jax "
            "(pip install 'jzero[plan]') and import jzero before anything starts JAX."
        ) from error
    return make_mesh(cluster.devices)


def full_nodes(gpu: str, n_gpus: int, gpus_per_node: int) -> int:
    """The GPUs of each node of a cluster, which is one node where it is smaller than that.

    Args:
        gpu: one of `GPUS`.
        n_gpus: see `gpu_mesh`.
        gpus_per_node: see `gpu_mesh`.

    Raises:
        ConfigError: an unknown GPU, or nodes that would not be full.
    """
    if gpu not in GPUS:
        raise ConfigError(f"No GPU is named {gpu!r}; known are {', '.join(GPUS)}.")
    if n_gpus < 1 or gpus_per_node < 1:
        raise ConfigError(f"n_gpus={n_gpus} and gpus_per_node={gpus_per_node} must both be at least 1.")
    gpus_per_node = min(n_gpus, gpus_per_node)
    if n_gpus % gpus_per_node:
        raise ConfigError(f"n_gpus={n_gpus} does not fill nodes of {gpus_per_node} GPUs; use a multiple of it.")
    return gpus_per_node


def gpu_memory(gpu: str) -> int:
    """Bytes of a GPU's memory that CUDA shows, which are fewer than the data sheet's.

    >>> gpu_memory("h100-80g")
    84942979072
    """
    found = re.search(r"device_memory_size: (\d+)", (_DESCRIPTIONS / f"{gpu}.txtpb").read_text())
    assert found is not None, f"{gpu}.txtpb says no memory size"
    return int(found[1])


def can_compile() -> bool:
    """Whether JAX's CUDA plugin is installed, which compiling for GPUs needs."""
    return any(map(_is_installed, CUDA_PLUGINS))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the namespace package is there
        return False
