"""The checksums of `jzero.checkpoint.format.checksum` on accelerators, each device summing what it holds.

No collective is needed, and a device's memory is read once, at its own speed.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, Sharding

from jzero.base.types import Device
from jzero.checkpoint.format.leaves import on_devices

_AT_ONCE = 16
"""Arrays that one program takes; programs are few, since arrays of one kind come in runs of powers of two."""


class _Kind(NamedTuple):
    """What arrays must have in common for one program to sum them."""

    shape: tuple[int, ...]
    stored_shape: tuple[int, ...]
    dtype: np.dtype
    sharding: Sharding


def start(
    leaves: Mapping[str, jax.Array], shapes: Mapping[str, tuple[int, ...]], spread: int
) -> dict[str, Callable[[], int]]:
    """Starts the sums; see `jzero.checkpoint.format.checksum.start`.

    Args:
        leaves: the arrays; those in host memory pass through the devices, one at a time.
        shapes: their true shapes.
        spread: what positions are multiplied by.

    Returns:
        For each array, what waits for the sum over the parts that this process answers for.
    """
    alike: dict[_Kind, list[str]] = {}
    for name, x in leaves.items():
        alike.setdefault(_Kind(shapes[name], x.shape, x.dtype, x.sharding), []).append(name)
    waits = {}
    for (shape, stored_shape, _, sharding), names in alike.items():
        elsewhere = on_devices(leaves[names[0]]) is not leaves[names[0]]
        for chunk in _chunks(names, 1 if elsewhere else _AT_ONCE):
            here = [on_devices(leaves[name]) for name in chunk]
            sums = _sums(here, shape, here[0].sharding, spread)
            if elsewhere:  # the devices may not have the room for several
                jax.block_until_ready(sums)
            counted = _first_holders(sharding, stored_shape)
            for name, parts in zip(chunk, sums, strict=True):
                waits[name] = functools.partial(_total, parts, counted)
    return {name: waits[name] for name in leaves}


def _total(parts: jax.Array, counted: frozenset[Device]) -> int:
    return sum(int(np.asarray(part.data)[0]) for part in parts.addressable_shards if part.device in counted) % 2**32


def _chunks(names: list[str], largest: int) -> Iterator[list[str]]:
    """Divides names into runs of `largest` and then of powers of two."""
    at = 0
    while at < len(names):
        size = min(largest, 1 << (len(names) - at).bit_length() - 1)
        yield names[at : at + size]
        at += size


def _first_holders(sharding: Sharding, shape: tuple[int, ...]) -> frozenset[Device]:
    """One device for each part of an array: the others hold copies."""
    holders: dict[str, Device] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        holders.setdefault(str(index), device)
    return frozenset(holders.values())


@functools.partial(jax.jit, static_argnums=(1, 2, 3))
def _sums(xs: list[jax.Array], shape: tuple[int, ...], sharding: Sharding, spread: int) -> list[jax.Array]:
    """`uint32[n_devices]` for each of some arrays that lie alike: the sums of the parts, each where the part is."""
    if not isinstance(sharding, NamedSharding):
        return [_sum(x, shape, [jnp.uint32(0)] * x.ndim, spread) for x in xs]
    mesh, spec = sharding.mesh, sharding.spec

    def parts(xs: list[jax.Array]) -> list[jax.Array]:
        starts = [_index(mesh, spec, dim) * jnp.uint32(size) for dim, size in enumerate(xs[0].shape)]
        return [_sum(x, shape, starts, spread) for x in xs]

    everywhere = PartitionSpec(mesh.axis_names)
    return jax.shard_map(parts, mesh=mesh, in_specs=(spec,), out_specs=everywhere, check_vma=False)(xs)


def _index(mesh: Mesh | AbstractMesh, spec: PartitionSpec, dim: int) -> jax.Array:
    """Which part of a dimension this device holds."""
    names = spec[dim] if dim < len(spec) else None
    index = jnp.uint32(0)
    for name in (names,) if isinstance(names, str) else names or ():
        index = index * jnp.uint32(mesh.shape[name]) + jax.lax.axis_index(name).astype(jnp.uint32)
    return index


def _sum(x: jax.Array, shape: tuple[int, ...], starts: list[jax.Array], spread: int) -> jax.Array:
    """`uint32[1]`: the sum over a part whose first element stands at `starts` in an array of the true `shape`."""
    position, inside = jnp.zeros(x.shape, jnp.uint32), jnp.ones(x.shape, bool)
    for dim, size in enumerate(shape):
        index = jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim) + starts[dim]
        position += index * jnp.uint32(math.prod(shape[dim + 1 :]) % 2**32)
        inside &= index < size
    hashed = position * jnp.uint32(spread)
    for word in _words(x):
        hashed = _mix(hashed ^ word)
    return jnp.sum(jnp.where(inside, hashed, jnp.uint32(0)), dtype=jnp.uint32)[None]


def _words(x: jax.Array) -> list[jax.Array]:
    """The bits of each element as one or two words."""
    if x.dtype == bool:
        return [x.astype(jnp.uint32)]
    if x.dtype.itemsize == 8:  # complex64 has no bit cast of its own
        is_complex = jnp.issubdtype(x.dtype, jnp.complexfloating)
        pair = jax.lax.bitcast_convert_type(jnp.stack([x.real, x.imag], -1) if is_complex else x, jnp.uint32)
        return [pair[..., 0], pair[..., 1]]
    same_width = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    return [jax.lax.bitcast_convert_type(x, same_width).astype(jnp.uint32)]


def _mix(h: jax.Array) -> jax.Array:
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return h ^ (h >> 16)
