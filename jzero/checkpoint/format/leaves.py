"""Leaves by name, and the arrays that a checkpoint holds: true shapes, without the padding of the live state."""

import functools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jax.typing import DTypeLike

from jzero.base.types import Placements, PyTree
from jzero.errors import CheckpointError


def by_name(tree: PyTree, is_leaf: Callable[[PyTree], bool] | None = None) -> dict[str, PyTree]:
    """The leaves of a pytree under their paths, in tree order.

    Raises:
        CheckpointError: two of them have one path, as under a key with a slash in it.

    Example:
        >>> by_name({"params": {"layers": [1, 2]}})
        {'params/layers/0': 1, 'params/layers/1': 2}
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_leaf)
    named: dict[str, PyTree] = {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name in named:
            raise CheckpointError(
                f"two arrays are both named {name!r} in a checkpoint, where slashes are between the parts of a name; "
                "name one of them otherwise in the model."
            )
        named[name] = leaf
    return named


def true_shapes(tree: PyTree, placements: Placements) -> dict[str, tuple[int, ...]]:
    """The true shape of each leaf: that of its placement, or its own where there are no placements."""
    shaped = tree if placements is None else placements
    leaves = by_name(shaped, is_leaf=lambda x: hasattr(x, "padded_shape"))
    return {name: tuple(leaf.shape) for name, leaf in leaves.items()}


def without_padding(leaves: Mapping[str, jax.Array], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, jax.Array]:
    """Global arrays of the given shapes: the live arrays themselves, or whole copies of the few that are padded.

    A leaf is padded only if none of its dimensions divides, so its true shape cannot be spread evenly over the devices.
    """
    padded = {name: on_devices(x) for name, x in leaves.items() if x.shape != shapes[name]}
    # One program for all: several at a time, each with a gather, could wait for each other on simulated devices.
    true = _cut(
        tuple(padded.values()),
        tuple(shapes[name] for name in padded),
        tuple(whole(x.sharding) for x in padded.values()),
    )
    return {**leaves, **dict(zip(padded, true, strict=True))}


def whole(sharding: Sharding) -> Sharding:
    """The sharding of the same devices in which every one holds the whole array, in its own memory."""
    return NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else sharding


def on_devices(x: jax.Array) -> jax.Array:
    """The array in the devices' memory, where programs can read it; itself if it lies there already."""
    sharding = in_default_memory(x.sharding)
    return x if x.sharding.memory_kind in {None, sharding.memory_kind} else jax.device_put(x, sharding)


def in_default_memory(sharding: Sharding) -> Sharding:
    """The sharding with its devices' own memory in place of any other."""
    (kind,) = {device.default_memory().kind for device in sharding.device_set}
    return sharding.with_memory_kind(kind)


def on_cpus(leaves: Mapping[str, jax.Array]) -> bool:
    """Whether all arrays are on (simulated) devices whose memory is that of the host."""
    return {device.platform for x in leaves.values() for device in x.sharding.device_set} <= {"cpu"}


@functools.partial(jax.jit, static_argnums=(1, 2))
def _cut(
    xs: tuple[jax.Array, ...], shapes: tuple[tuple[int, ...], ...], shardings: tuple[Sharding, ...]
) -> list[jax.Array]:
    true = [jax.lax.slice(x, [0] * x.ndim, shape) for x, shape in zip(xs, shapes, strict=True)]
    return [jax.lax.with_sharding_constraint(x, to) for x, to in zip(true, shardings, strict=True)]


def brief(shape: Sequence[int], dtype: object) -> str:
    """How messages write an array's type, such as `float32[4,8]`."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def is_floating(dtype: str) -> bool:
    """Whether numbers of this dtype may be rounded to another floating one."""
    return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)


def narrows(dtype: DTypeLike, to: DTypeLike) -> bool:
    """Whether a number that is finite in one dtype may not be so in another floating one.

    Example:
        >>> narrows("float32", "bfloat16"), narrows("bfloat16", "float32"), narrows("bfloat16", "float16")
        (True, False, True)
    """
    floating = jnp.issubdtype(dtype, jnp.floating) and jnp.issubdtype(to, jnp.floating)
    return floating and float(jnp.finfo(dtype).max) > float(jnp.finfo(to).max)


def narrowed(x: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Numbers rounded to another dtype, in which all that are finite must stay so.

    Raises:
        OverflowError: one is too large for it.

    Example:
        >>> narrowed(np.array([1.0, 65504.0]), "float16").dtype
        dtype('float16')
        >>> narrowed(np.array([1.0, 7e4]), "float16")
        Traceback (most recent call last):
        OverflowError: 70000.0 is too large for float16
    """
    to = jnp.dtype(dtype)
    with np.errstate(over="ignore"):
        y = x.astype(to, copy=False)
    if narrows(x.dtype, to) and (lost := np.isfinite(x) & ~np.isfinite(y)).any():
        raise OverflowError(f"{x[lost].flat[0]} is too large for {to}")
    return y
