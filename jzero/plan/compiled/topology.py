"""Meshes of GPUs that are not there: XLA compiles for them from a description, so a laptop builds a cluster's program.

The devices carry no memory and run nothing; they stand in shardings, and `compile_only` of what `jit(...).lower(...)`
gives is the program the real GPUs would run. Needs JAX's CUDA plugin (`pip install 'jzero[plan]'`), but no driver and
no NVIDIA library.
"""

import importlib.util
import math
from collections.abc import Mapping
from importlib import resources
from string import Template

import jax
from jax.experimental import topologies
from jax.sharding import Mesh

from jzero.base.quiet import CUDA_PLUGINS
from jzero.errors import ConfigError, JzeroError
from jzero.plan.hardware.cluster import full_nodes
from jzero.plan.hardware.figures import GpuFigures, gpu_figures
from jzero.sharding.mesh import make_mesh

_TARGET = resources.files("jzero.plan.hardware") / "gpus" / "target.txtpb"

# Autotuning would time kernels on a device that is not there.
COMPILE_ONLY_OPTIONS: dict[str, str | bool] = {"xla_gpu_autotune_level": "0"}
if jax.__version_info__ >= (0, 12):
    # Its Triton kernels for small all-reduces abort the process for a scalar on 64 GPUs; without them NCCL reduces.
    COMPILE_ONLY_OPTIONS["xla_gpu_experimental_use_collective_kernels"] = ""


def gpu_mesh(gpu: str = "h100-80g", n_gpus: int = 64, gpus_per_node: int = 8) -> Mesh:
    """Builds a (replica=1, shard=n_gpus, tensor=1) mesh of compile-only GPUs.

    Args:
        gpu: one of `jzero.plan.GPUS`, or the path of a file like theirs, see `jzero.plan.gpu_figures`.
        n_gpus: number of GPUs in the cluster.
        gpus_per_node: GPUs that share a node, and thus NVLink; a cluster smaller than one node is one node.

    Returns:
        A mesh as `jzero.sharding.mesh.make_mesh` builds it; for other axis sizes pass its `devices.flat` to
        that function.

    Raises:
        ConfigError: an unknown GPU, nodes that would not be full, or a GPU that XLA cannot compile for.
        JzeroError: the CUDA plugin is missing or was not loaded.

    Example:
        >>> dict(gpu_mesh("h100-80g", n_gpus=16).shape)
        {'replica': 1, 'shard': 16, 'tensor': 1}
    """
    figures = gpu_figures(gpu)
    gpus_per_node = full_nodes(n_gpus, gpus_per_node)
    if figures.target is None:
        raise ConfigError(f"XLA cannot compile for {gpu}, whose file has no `target`; its plan is by the closed form.")
    if not can_compile():
        raise JzeroError(
            "Compiling for GPUs that are not there needs JAX's CUDA plugin, which is not installed: "
            "pip install 'jzero[plan]'."
        )
    try:
        cluster = topologies.get_topology_desc(
            platform="cuda",
            target_config=_target_config(figures),
            topology=f"1x{n_gpus // gpus_per_node}x{gpus_per_node}",  # slices x nodes x GPUs per node
        )
    except NotImplementedError as error:
        raise JzeroError(
            "JAX did not load its CUDA plugin: install the version that belongs to the installed jax "
            "(pip install 'jzero[plan]') and import jzero before anything starts JAX."
        ) from error
    return make_mesh(cluster.devices)


def can_compile_for(gpu: str) -> bool:
    """Whether programs for this GPU can be compiled here: XLA knows how to, and JAX's CUDA plugin is installed."""
    return gpu_figures(gpu).target is not None and can_compile()


def compile_only(lowered: jax.stages.Lowered, options: Mapping[str, str | bool] | None = None) -> jax.stages.Compiled:
    """Compiles a program for devices that are not there.

    JAX's cache on disk (`JAX_COMPILATION_CACHE_DIR`) is passed over: it would keep the program and then, each time it
    is asked for, warn that without such a device it cannot be loaded.

    Args:
        lowered: the program, lowered for a mesh of `gpu_mesh`.
        options: further options for XLA.

    Example:
        >>> from jax.sharding import NamedSharding, PartitionSpec
        >>> x = jax.ShapeDtypeStruct((8,), "float32", sharding=NamedSharding(gpu_mesh(n_gpus=8), PartitionSpec()))
        >>> compile_only(jax.jit(lambda x: x + 1).lower(x)).memory_analysis().output_size_in_bytes
        32
    """
    least_seconds = "jax_persistent_cache_min_compile_time_secs"
    before = getattr(jax.config, least_seconds)
    jax.config.update(least_seconds, math.inf)
    try:
        return lowered.compile(compiler_options=COMPILE_ONLY_OPTIONS | dict(options or {}))
    finally:
        jax.config.update(least_seconds, before)


def _target_config(gpu: GpuFigures) -> str:
    assert gpu.target is not None
    capability = gpu.target.compute_capability
    major, minor = capability.rstrip("af").split(".")
    extension = {"a": "ACCELERATED_FEATURES", "f": "FAMILY_COMPATIBLE_FEATURES"}.get(capability[-1], "NONE")
    sizes = {key: str(value).lower() for key, value in vars(gpu.target).items() if not key.startswith("__")}
    rates = {"memory_bandwidth": int(gpu.memory_bandwidth), "pcie_bandwidth": int(gpu.pcie_bandwidth)}
    return Template(_TARGET.read_text()).substitute(
        sizes | rates, memory=gpu.memory, device_kind=gpu.device_kind, major=major, minor=minor, extension=extension
    )


def can_compile() -> bool:
    """Whether JAX's CUDA plugin is installed, which compiling for GPUs needs."""
    return any(map(_is_installed, CUDA_PLUGINS))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even the namespace package is there
        return False
