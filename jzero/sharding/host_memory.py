"""Host memory as part of an array's type: moving arrays there and back inside `jit`, and naming it in shardings.

An array in host memory cannot be computed with, only sliced, reshaped and moved; the copies are asynchronous in a
program for GPUs. A `device_put` onto a sharding would leave the state on the device without a word there, so that
everything here goes through `jax.memory.Space`.
"""

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jzero.jaxpr.program import ShapedArray

Space = jax.memory.Space
PINNED_HOST = "pinned_host"


def is_on_host(x: jax.Array) -> bool:
    """Whether an array, or a tracer, lies in host memory."""
    return jax.typeof(x).memory_space == Space.Host


def to_host(x: jax.Array) -> jax.Array:
    """Moves an array to the host it belongs to, sharded as it is. For use inside `jit`."""
    return x if is_on_host(x) else jax.device_put(x, Space.Host)


def to_device(x: jax.Array) -> jax.Array:
    """Moves an array to the device it belongs to. For use inside `jit`; the gradient goes back to where `x` lies."""
    return jax.device_put(x, Space.Device) if is_on_host(x) else x


def abstract(shape: tuple[int, ...], dtype: DTypeLike, *, on_host: bool = False) -> ShapedArray:
    """The type of an array, for tracing; a `jax.ShapeDtypeStruct` cannot say where it lies without a mesh.

    Example:
        >>> abstract((2, 3), "float32", on_host=True)
        ShapedArray(float32<host>[2,3])
    """
    return ShapedArray(shape, jax.numpy.dtype(dtype), memory_space=Space.Host if on_host else Space.Device)


def sharding(mesh: Mesh, spec: PartitionSpec, *, on_host: bool = False) -> NamedSharding:
    """How an array lies over a mesh, in device or host memory.

    Devices that exist only for the compiler cannot name a memory. An abstract mesh can, and JAX takes the devices from
    the other arguments of the program.
    """
    if not on_host:
        return NamedSharding(mesh, spec)
    placed = NamedSharding(mesh, spec, memory_kind=PINNED_HOST)
    return placed if placed.memory_kind else NamedSharding(mesh.abstract_mesh, spec, memory_kind=PINNED_HOST)
