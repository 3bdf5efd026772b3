"""What offloading costs: host memory, and bytes over PCIe in every step. Checked before any of it is taken."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

import jax

from jzero.base.types import Mask, Placements, PyTree
from jzero.base.units import format_bytes
from jzero.errors import ConfigError
from jzero.sharding.host_memory import PINNED_HOST
from jzero.sharding.placement import Placement

PCIE_BYTES_PER_SECOND = 25e9
"""What a PCIe 4.0 link of 16 lanes moves in one direction; PCIe 5.0 moves twice as much."""

POOL_LIMIT = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
DEFAULT_POOL_GB = 64

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Budget:
    """What one device takes of its host.

    Attributes:
        state: bytes of parameters and moments in host memory.
        gradients: bytes of gradients there, inside a step; at two levels of the group's part of parameters too, as
            wide as they last.
        to_device: bytes that come from the host in a step.
        to_host: bytes that go back.
        in_files: bytes of parameters and moments on disk, of which there are two generations.
    """

    state: int
    gradients: int
    to_device: int
    to_host: int
    in_files: int = 0

    @property
    def seconds(self) -> float:
        """The least time that the copies of a step take: both directions at once over one PCIe 4.0 link."""
        return max(self.to_device, self.to_host) / PCIE_BYTES_PER_SECOND


def budget(
    state: PyTree, params_on_host: Mask, placements: Placements, *, at_use: bool, n_micro: int, in_files: int = 0
) -> Budget:
    """Adds up what a device takes of its host.

    Args:
        state: the abstract `TrainState`, with shardings.
        params_on_host: pytree of bool like the parameters.
        placements: pytree of `Placement` like the parameters.
        at_use: whether parameters are fetched at each use and gradients go to the host.
        n_micro: micro-batches per step.
        in_files: see `Budget`.

    Returns:
        The budget, counting each parameter that is fetched at use twice per micro-batch: forward and backward. A copy
        that the compiler finds unnecessary, or one more that it makes, is not counted. What is in files is updated on
        the host, and comes there as it is.
    """
    shares = [math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in _hosted(state)]
    lie = jax.tree.leaves(placements, is_leaf=lambda x: isinstance(x, Placement))
    every = zip(lie, jax.tree.leaves(params_on_host), jax.tree.leaves(state.params), strict=True)
    hosted = [(p, x.dtype.itemsize) for p, on_host, x in every if on_host]
    params = sum(math.prod(p.shard_shape) * itemsize for p, itemsize in hosted)
    lasting = sum(shares)
    if not at_use:
        return Budget(lasting, 0, lasting + params, lasting, in_files)
    # Gradients go out as they arise, and come in again to be measured and to be used; each sum costs one trip more.
    sums = n_micro - 1
    grads = 4 * sum(math.prod(p.shard_shape) for p, _ in hosted) if in_files else params
    # At two levels a step computes with its group's part, and crosses groups at its start and at its end.
    grouped = any(p.n_groups > 1 for p, _ in hosted)
    copy = sum(math.prod(p.in_group.shard_shape) * itemsize for p, itemsize in hosted) if grouped else 0
    group_grads = 4 * sum(math.prod(p.in_group.shard_shape) for p, _ in hosted) if grouped else grads
    to_device = (copy or params) * 2 * n_micro + grads + group_grads * 2 * sums
    to_host = group_grads * (n_micro + sums)
    if grouped:
        to_device, to_host = to_device + params + group_grads, to_host + copy + grads
    if not in_files:
        to_device, to_host = to_device + lasting + grads, to_host + lasting
    return Budget(lasting, group_grads * (1 + (n_micro > 1)) + copy, to_device, to_host, in_files)


def check_host_memory(needed: Budget, n_local_devices: int, platform: str) -> None:
    """Refuses what this process's host cannot hold.

    Args:
        needed: by each device.
        n_local_devices: devices of this process.
        platform: "gpu", "cpu", ...

    Raises:
        ConfigError: with the bytes that are needed and those there are, and what to change.
    """
    total = (needed.state + needed.gradients) * n_local_devices
    if not total:
        return
    what = f"offloading takes {format_bytes(total)} of host memory ({n_local_devices} devices of this process)"
    free = free_memory()
    if free is not None and total > free:
        raise ConfigError(
            f"{what}, and {format_bytes(free)} are free; offload a smaller share "
            "(zero_optimization.offload_optimizer.ratio), or use more hosts."
        )
    limit = int(os.environ.get(POOL_LIMIT, DEFAULT_POOL_GB)) * 10**9
    if platform in ("gpu", "cuda") and total > limit:
        raise ConfigError(
            f"{what}, and JAX pins at most {format_bytes(limit)}; set the environment variable "
            f"{POOL_LIMIT}={math.ceil(total / 10**9) + 8} before the program starts."
        )


def free_memory() -> int | None:
    """Bytes of memory that this process can still take, None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    free = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    try:
        allowed = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        usage = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines())
        left = allowed - int(usage["anon"])
    except (OSError, ValueError, KeyError):  # not in a container, or one without a limit
        return free
    return left if free is None else min(free, left)


def _hosted(state: PyTree) -> list[jax.ShapeDtypeStruct]:
    return [x for x in jax.tree.leaves(state) if x.sharding.memory_kind == PINNED_HOST]
