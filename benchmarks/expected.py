"""Tells ZeRO's own collectives, of parameters and gradients, from what a compiler makes of activations."""

import math
from collections.abc import Iterable
from typing import Any

import jax

from jzero.plan import Collective
from jzero.sharding.placement import place


def unexpected(
    collectives: Iterable[Collective], params: Any, n_shards: int, *, stacked: bool, min_bytes: int = 2**20
) -> list[Collective]:
    """The large collectives that are not ZeRO's own.

    Args:
        collectives: those of a compiled step.
        params: the model's abstract parameters.
        n_shards: parts that each of them is divided into.
        stacked: whether some of them have a dimension of layers in front.
        min_bytes: of the payload; the sums of norms, losses and small leaves stay below.

    Returns:
        Everything but gathers of an array shaped like a parameter, or like one layer of it, and scatters and sums of
        such gradients, of pieces of one gradient, or of several laid end to end.
    """
    shapes: set[tuple[int, ...]] = set()
    for x in jax.tree.leaves(params):
        # Where dimension 0 counts layers, a layer travels at a time; XLA drops the ones of a kernel.
        for shape in [x.shape] + [x.shape[1:]] * stacked:
            for padded in (shape, place(shape, n_shards).padded_shape):
                shapes |= {tuple(sorted(padded)), tuple(sorted(size for size in padded if size > 1))}

    def is_piece(shape: tuple[int, ...]) -> bool:
        """Whether some parameter is as long in every dimension but one, in which it is a few times as long."""
        return any(
            len(whole) == len(shape)
            and sum(a != b for a, b in zip(whole, sorted(shape), strict=True)) == 1
            and math.prod(whole) % math.prod(shape) == 0
            for whole in shapes
        )

    def is_expected(c: Collective) -> bool:
        if c.kind == "all-gather":
            return tuple(sorted(c.shape)) in shapes
        if c.kind in ("reduce-scatter", "all-reduce"):
            return len(c.shape) == 1 or tuple(sorted(c.shape)) in shapes or is_piece(c.shape)
        return False

    return [c for c in collectives if c.n_bytes >= min_bytes and not is_expected(c)]
