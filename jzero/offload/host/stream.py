"""Passes arrays in host memory through the device in pieces: bounded buffers, asynchronous copies both ways.

For use inside `shard_map`, on the part of an array that one device holds. An array is seen as rows; a loop carries it
and overwrites in place what it has read, so that neither memory holds it twice.
"""

import math
import sys
from collections.abc import Callable, Sequence

import jax

from jzero.base.types import PyTree
from jzero.sharding.host_memory import is_on_host, to_device, to_host

PIECE_ELEMENTS = 2**24
"""Elements of a parameter that are on the device at once: 64 MiB in fp32, enough to use all of a PCIe link."""


def largest_piece(platform: str) -> int:
    """The most elements that are on a device at once. Where both memories are one, as on CPUs, there is no bound:
    pieces would save nothing, and XLA copies the whole array for each.

    >>> largest_piece("gpu") < largest_piece("cpu")
    True
    """
    return sys.maxsize if platform == "cpu" else PIECE_ELEMENTS


def rows_of(shape: tuple[int, ...], piece_elements: int = PIECE_ELEMENTS) -> tuple[int, int, int]:
    """How an array is cut: its number of rows, their length, and how many of them make a piece.

    Example:
        >>> rows_of((36, 512, 4096), 2**20)
        (18432, 4096, 256)
    """
    length = shape[-1] if shape else 1
    rows = math.prod(shape[:-1])
    return rows, length, max(1, min(rows, piece_elements // max(length, 1)))


def update_in_pieces(
    fn: Callable[..., Sequence[jax.Array]],
    changed: Sequence[jax.Array],
    read: Sequence[jax.Array],
    piece_elements: int = PIECE_ELEMENTS,
) -> list[jax.Array]:
    """Applies an elementwise function to arrays of one shape, piece by piece, each in the memory it lies in.

    Args:
        fn: `fn(*pieces of changed, *pieces of read) -> new pieces of changed`, on device arrays: of the given shape, or
            `[rows, length]` pieces of it.
        changed: the arrays that it replaces, on the host.
        read: further arrays, on the host or on the device.
        piece_elements: how large a piece is at most, unless a single row is larger.

    Returns:
        The new values of `changed`, on the host.
    """
    shape = changed[0].shape
    rows, length, step = rows_of(shape, piece_elements)
    if rows <= step:  # as they are: XLA updates no array in place whose shape changes on the way
        return [to_host(new) for new in fn(*map(to_device, (*changed, *read)))]
    state, others = ([x.reshape(rows, length) for x in xs] for xs in (changed, read))

    def at(state: list[jax.Array], start: jax.Array | int, size: int) -> list[jax.Array]:
        pieces = [to_device(jax.lax.dynamic_slice_in_dim(x, start, size)) for x in (*state, *others)]
        # Where both memories are one, XLA would read the slices again after some have been overwritten: from copies.
        pieces = jax.lax.optimization_barrier(pieces)
        return [
            jax.lax.dynamic_update_slice_in_dim(x, to_host(new), start, 0)
            for x, new in zip(state, fn(*pieces), strict=True)
        ]

    n_pieces, left = divmod(rows, step)
    state = jax.lax.fori_loop(0, n_pieces, lambda i, state: at(state, i * step, step), state)
    if left:
        state = at(state, n_pieces * step, left)
    return [x.reshape(shape) for x in state]


def reduce_in_pieces(
    fn: Callable[[jax.Array], jax.Array], x: jax.Array, initial: jax.Array, piece_elements: int = PIECE_ELEMENTS
) -> jax.Array:
    """Adds up `fn(piece)` over the pieces of an array that may lie on the host."""
    if not is_on_host(x):
        return initial + fn(x)
    rows, length, step = rows_of(x.shape, piece_elements)
    x = x.reshape(rows, length)
    part = lambda start, size: fn(to_device(jax.lax.dynamic_slice_in_dim(x, start, size)))
    n_pieces, left = divmod(rows, step)
    total = jax.lax.fori_loop(0, n_pieces, lambda i, total: total + part(i * step, step), initial)
    return total + part(n_pieces * step, left) if left else total


def serialize_after(waiting: PyTree, before: PyTree) -> tuple[PyTree, PyTree]:
    """Makes arrays wait for others, so that copies of one parameter do not start while an earlier one is under way."""
    return jax.lax.optimization_barrier((waiting, before))
