"""Devices become a mesh: the three axes that every other module names, and simulated CPU devices to try them on.

`replica` holds copies of the state (data parallelism across shard groups), `shard` is the axis ZeRO partitions over,
and `tensor`, where it has more than one device, is left to the compiler. The batch is split over the first two. Every
axis is of type Auto, because the optimizer and the tensor axis rely on the compiler's own partitioning.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jzero.base.types import Device, PyTree
from jzero.config import Config
from jzero.errors import ConfigError, JzeroError
from jzero.jaxpr.devices import target_of, traced_for

AXES = REPLICA_AXIS, SHARD_AXIS, TENSOR_AXIS = ("replica", "shard", "tensor")
DATA_AXES = (REPLICA_AXIS, SHARD_AXIS)

NO_AXES = AbstractMesh((), ())
"""What JAX shows where no mesh is set."""

Taken = ParamSpec("Taken")
Given = TypeVar("Given")


def make_mesh(devices: Sequence[object] | None = None, *, replica: int = 1, tensor: int = 1) -> Mesh:
    """Arranges devices into a (replica, shard, tensor) mesh.

    Neighbours in `devices` become neighbours on `tensor` first, then on `shard`, so with devices listed node by node
    the axes that communicate most stay inside a node.

    Args:
        devices: the `jax.Device`s to use, in order; all devices of all processes by default.
        replica: number of copies of the sharded state.
        tensor: number of devices that share one data shard.

    Returns:
        A mesh of shape (replica, len(devices) / (replica * tensor), tensor).

    Raises:
        ConfigError: the number of devices is not a multiple of replica * tensor.

    Example:
        >>> dict(make_mesh(jax.devices()[:4], replica=2).shape)
        {'replica': 2, 'shard': 2, 'tensor': 1}
    """
    devices = jax.devices() if devices is None else list(devices)
    for name, size in (("replica", replica), ("tensor", tensor)):
        if size < 1:
            raise ConfigError(f"The mesh axis {name!r} has size {size}; it must be at least 1.")
    if not devices:
        raise ConfigError("A mesh needs at least one device, and none was given.")
    n_shards, left_over = divmod(len(devices), replica * tensor)
    if left_over:
        raise ConfigError(
            f"{len(devices)} devices cannot form a mesh with replica={replica} and tensor={tensor}: "
            f"the number of devices must be a multiple of replica * tensor = {replica * tensor}."
        )
    grid = np.array(devices, dtype=object).reshape(replica, n_shards, tensor)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def mesh_for(config: Config, devices: Sequence[object] | None = None) -> Mesh:
    """The mesh that a configuration asks for: all devices on `shard`, or at stage 3 the groups of two levels or MiCS.

    Args:
        config: reads `zero_optimization.mics_shard_size`, `zero_hpz_partition_size` and `jzero.two_level`.
        devices: as for `make_mesh`.

    Raises:
        ConfigError: the groups do not divide the devices.

    Example:
        >>> zero = {"stage": 3, "mics_shard_size": 4}
        >>> dict(mesh_for(Config.load({"zero_optimization": zero}), jax.devices()[:8]).shape)
        {'replica': 2, 'shard': 4, 'tensor': 1}
    """
    devices = jax.devices() if devices is None else list(devices)
    return make_mesh(devices, replica=n_groups(config, len(devices), devices_per_node(devices)))


def n_groups(config: Config, n_devices: int, per_node: int) -> int:
    """The groups of devices that a configuration asks for; 1 for all of them together.

    Args:
        config: see `mesh_for`.
        n_devices: data shards.
        per_node: devices of a node.

    Raises:
        ConfigError: the groups do not divide the devices.

    Example:
        >>> n_groups(Config.load({"zero_optimization": {"stage": 3}, "jzero": {"two_level": "auto"}}), 64, 8)
        8
    """
    zero, name = config.zero_optimization, "zero_optimization.mics_shard_size"
    group = zero.shard_group
    if group is None and config.asks_two_levels:
        name = "zero_optimization.zero_hpz_partition_size" if zero.hpz_group else "jzero.two_level"
        group = min(zero.hpz_group or per_node, n_devices)  # what fits into one group is one
    groups, left_over = divmod(n_devices, group or n_devices or 1)
    if left_over or (group and not groups):
        raise ConfigError(f"`{name}` = {group} does not divide the {n_devices} devices into groups.")
    return max(groups, 1)


def devices_per_node(devices: Sequence[Device]) -> int:
    """How many of these devices share a host: those of a process, or of all that a launcher started there.

    Example:
        >>> devices_per_node(jax.devices()[:4])
        4
    """
    first = devices[0].process_index if devices else 0
    here = sum(device.process_index == first for device in devices)
    started = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    return max(here, int(started) if started.isdigit() and jax.process_count() > 1 else 1)


def platform(mesh: Mesh | AbstractMesh) -> str:
    """What the devices of a mesh are, "cpu" or "gpu" or "cuda"; a mesh without devices stands for GPUs.

    >>> platform(make_mesh(jax.devices()[:1]))
    'cpu'
    """
    return "gpu" if isinstance(mesh, AbstractMesh) else mesh.devices.flat[0].platform


def n_data_shards(mesh: Mesh) -> int:
    """Counts the parts a batch is split into: the product of the data axes, DeepSpeed's data-parallel world size.

    Args:
        mesh: a mesh from `make_mesh`.

    Returns:
        replica * shard.

    Example:
        >>> n_data_shards(make_mesh(jax.devices()[:4], tensor=2))
        2
    """
    return mesh.shape["replica"] * mesh.shape["shard"]


def shard_over_data(fn: Callable, mesh: Mesh, in_specs: PyTree, out_specs: PyTree) -> Callable:
    """`jax.shard_map` over the data axes; a tensor axis of more than one device is left to the compiler.

    Where no axis is, JAX's operations with a partitioning of their own, such as cuDNN's attention, work inside too.
    """
    axes = set(AXES) if mesh.shape[TENSOR_AXIS] == 1 else set(DATA_AXES)

    @functools.wraps(fn)
    def traced(*args: PyTree) -> PyTree:
        with traced_for(target_of(mesh)):
            return fn(*args)

    sharded = jax.shard_map(traced, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axes, check_vma=False)

    def run(*args: PyTree) -> PyTree:
        with jax.sharding.use_abstract_mesh(NO_AXES):  # that of a `jax.set_mesh` around a pure function
            return sharded(*args)

    return run


def outside_meshes(fn: Callable[Taken, Given]) -> Callable[Taken, Given]:
    """Runs a function as if there were no `jax.set_mesh` around it: jzero places arrays over its own mesh.

    Example:
        >>> with jax.set_mesh(jax.make_mesh((8,), ("data",))):
        ...     outside_meshes(lambda: jax.sharding.get_abstract_mesh().empty)()
        True
    """

    @functools.wraps(fn)
    def run(*args: Taken.args, **kwargs: Taken.kwargs) -> Given:
        if jax.sharding.get_abstract_mesh().empty:
            return fn(*args, **kwargs)
        with jax.set_mesh(Mesh(np.empty((), dtype=object), ())):
            return fn(*args, **kwargs)

    return run


def simulate_devices(n: int) -> None:
    """Makes JAX show `n` CPU devices in this process, so that sharded programs run without accelerators.

    Args:
        n: number of devices per process.

    Raises:
        JzeroError: JAX has already started with other devices.

    Example:
        >>> simulate_devices(8)  # a no-op where JAX already runs on 8 CPU devices
    """
    try:
        jax.config.update("jax_num_cpu_devices", n)
        jax.config.update("jax_platforms", "cpu")
    except RuntimeError as error:
        if jax.default_backend() == "cpu" and jax.local_device_count() == n:
            return
        raise JzeroError(
            f"Cannot simulate {n} CPU devices: JAX has already started with {jax.local_device_count()} "
            f"{jax.default_backend()} device(s); call simulate_devices before anything that runs JAX."
        ) from error
