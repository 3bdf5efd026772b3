"""A checksum of an array's true elements that does not depend on how the array is divided, padded or stored.

Every element's bits are mixed with its position by a bijection, and the results are added modulo 2**32. Addition has
no order, so whoever holds a part sums it, and the host adds the sums up; nobody waits for another. A damaged element
always changes the sum. It is taken where the array lies, in one pass over it, and so covers the whole way from the
devices' memory to the disk and back. On simulated devices that is the host's memory, and numpy sums it as fast.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import jax
import numpy as np
from jax.experimental import multihost_utils

from jzero.checkpoint.format import device_checksum
from jzero.checkpoint.format.leaves import on_cpus

SPREAD = 0x9E3779B9
"""What positions are multiplied by; odd, so that they stay apart."""

_BLOCK_ELEMENTS = 2**16

Sums = dict[str, Callable[[], int]]
"""For each array, what waits for the sum over the parts that this process answers for."""


def start(leaves: Mapping[str, jax.Array], shapes: Mapping[str, tuple[int, ...]]) -> Sums:
    """Starts the checksums of some arrays, without waiting.

    Args:
        leaves: arrays of 1, 2, 4 or 8 bytes an element, on one device or under a `NamedSharding`, padded at the end of
            any dimension; their memory may be reused.
        shapes: their true shapes; what lies beyond does not count.

    Returns:
        What `finish` takes.
    """
    if not on_cpus(leaves):
        return device_checksum.start(leaves, shapes, SPREAD)
    sums: Sums = {}
    for name, x in leaves.items():
        parts = [(np.asarray(part.data), part.index) for part in x.addressable_shards if part.replica_id == 0]
        sums[name] = functools.partial(_sum_of_parts, parts, shapes[name])
    return sums


def finish(sums: Sums) -> dict[str, str]:
    """Waits for the checksums; every process must call it if there are several.

    Returns:
        8 hexadecimal digits for each array.

    Example:
        >>> padded, true = jax.numpy.arange(8.0), jax.numpy.arange(5.0)
        >>> texts = finish(start({"padded": padded, "true": true}, {"padded": (5,), "true": (5,)}))
        >>> texts["padded"] == texts["true"] == of_array(np.arange(5, dtype=np.float32))
        True
    """
    totals = np.array([wait() for wait in sums.values()], np.uint32)
    if jax.process_count() > 1 and sums:
        totals = np.asarray(multihost_utils.process_allgather(totals)).sum(axis=0, dtype=np.uint32)
    return {name: f"{total:08x}" for name, total in zip(sums, totals, strict=True)}


def of_array(x: np.ndarray) -> str:
    """The checksum of a whole array in this process's memory; it needs little memory of its own."""
    return f"{_sum(x, [0] * x.ndim, x.shape):08x}"


def verified(blocks: Iterable[np.ndarray], shape: tuple[int, ...], expected: str) -> Iterator[np.ndarray]:
    """Passes on an array that comes some rows at a time, of which it keeps nothing.

    Raises:
        ValueError: after the last block, if the array has another checksum.

    Example:
        >>> x = np.arange(12.0).reshape(4, 3)
        >>> [len(block) for block in verified([x[:1], x[1:]], x.shape, of_array(x))]
        [1, 3]
    """
    total = at = 0
    for block in blocks:
        total += _sum(block, [at, *[0] * (len(shape) - 1)] if shape else [], shape)
        at += len(block) if shape else 0
        yield block
        del block  # before the next one is made
    if f"{total % 2**32:08x}" != expected:
        raise ValueError("it has other values than were saved")


def _sum_of_parts(parts: Sequence[tuple[np.ndarray, Sequence[slice]]], shape: tuple[int, ...]) -> int:
    return sum(_sum(x, [s.start or 0 for s in index], shape) for x, index in parts) % 2**32


def _sum(x: np.ndarray, starts: Sequence[int], shape: tuple[int, ...]) -> int:
    """The sum over a part whose first element stands at `starts` in an array of the true `shape`, block by block."""
    x = x[tuple(slice(max(0, size - at)) for size, at in zip(shape, starts, strict=True))]
    if not x.size:
        return 0
    strides = [math.prod(shape[dim + 1 :]) * SPREAD % 2**32 for dim in range(x.ndim)]
    indices = [np.arange(at, at + size).astype(np.uint32) for size, at in zip(x.shape, starts, strict=True)]
    spread = [index * np.uint32(stride) for index, stride in zip(indices, strides, strict=True)]
    row = functools.reduce(lambda a, b: np.add.outer(a, b).ravel(), spread[1:], np.zeros(1, np.uint32))
    first = spread[0] if spread else np.zeros(1, np.uint32)
    total, n_rows = 0, max(1, _BLOCK_ELEMENTS // len(row))
    for at in range(0, len(first), n_rows):
        h = np.add.outer(first[at : at + n_rows], row)
        for word in _words(x[at : at + n_rows] if x.ndim else x, h.shape):
            h ^= word
            _mix(h)
        total += int(h.sum(dtype=np.uint32))
    return total % 2**32


def _words(x: np.ndarray, shape: tuple[int, ...]) -> list[np.ndarray]:
    """The bits of each element as one or two words."""
    width = x.dtype.itemsize
    words = np.ascontiguousarray(x).reshape(-1).view(f"u{min(width, 4)}").reshape(*shape, -1)
    return [words[..., i] for i in range(words.shape[-1])]


def _mix(h: np.ndarray) -> None:
    """A bijection of 32-bit words in which every bit depends on every other, in place: MurmurHash3's finalizer."""
    h ^= h >> np.uint32(16)
    h *= np.uint32(0x85EBCA6B)
    h ^= h >> np.uint32(13)
    h *= np.uint32(0xC2B2AE35)
    h ^= h >> np.uint32(16)
