"""Decides, for a chain of units, where each parameter is gathered: how far ahead of its use, and whether it is kept.

DeepSpeed's three bounds, in elements, mean here what they mean there: how much may be on its way
(`stage3_prefetch_bucket_size`), how much may be gathered at once (`stage3_max_live_parameters`), and within how many
elements a parameter must be used again to be kept (`stage3_max_reuse_distance`). A training step walks over the units
forward and then backward; everything here is a position on that walk.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp

from jzero.gather.unit.deferred import DeferredParam
from jzero.gather.unit.units import Orders, Schedule, Unit


@dataclass(frozen=True)
class Limits:
    """The bounds, in elements.

    Attributes:
        prefetch: how much may be gathered ahead of its use.
        live: how much may be gathered at once, where the units themselves do not need more.
        reuse: a parameter used again before this many others are gathered is kept; 0 keeps nothing.
    """

    prefetch: int
    live: int
    reuse: int


@dataclass(frozen=True)
class Fence:
    """A loop over parameters: nothing is gathered across it.

    Attributes:
        size: elements it gathers in one pass.
    """

    size: int


@dataclass
class _Gather:
    """One gather key at one position: where it comes from."""

    position: int
    gather_key: DeferredParam
    gathered_at: int = -1
    reused_from: int = -1

    @property
    def source(self) -> int:
        """The position that has it first."""
        return self.gathered_at if self.gathered_at >= 0 else self.reused_from

    @property
    def can_be_sent(self) -> bool:
        """Whether it can be handed on in both passes: the backward one needs a dtype that has cotangents."""
        return jnp.issubdtype(self.gather_key.shape.dtype, jnp.inexact)


def look_ahead(steps: Sequence[Unit | Fence], limits: Limits) -> dict[int, Schedule]:
    """Plans the gathers of a chain of units.

    Args:
        steps: the units and fences of a program in order.
        limits: the bounds.

    Returns:
        The schedule of each unit by its number in `steps`.
    """
    walk = _Walk(steps, limits)
    walk.keep_what_is_soon_used_again()
    walk.start_ahead_of_use()
    walk.sort_by_source()
    return {i: walk.schedule(i) for i, step in enumerate(steps) if isinstance(step, Unit)}


class _Walk:
    """Positions 0 to n - 1 are the forward pass, n to 2 n - 1 the backward pass, in which unit i is at 2 n - 1 - i."""

    def __init__(self, steps: Sequence[Unit | Fence], limits: Limits):
        self.n, self.limits = len(steps), limits
        path = [*enumerate(steps), *reversed(list(enumerate(steps)))]
        self.step_at = [number for number, _ in path]
        self.fences = [p for p, (_, step) in enumerate(path) if isinstance(step, Fence)]
        self.gathers = [
            [
                _Gather(p, gather_key, gathered_at=p)
                for gather_key in (() if isinstance(step, Fence) else step.to_gather(backward=p >= self.n))
            ]
            for p, (_, step) in enumerate(path)
        ]
        sizes = [
            step.size if isinstance(step, Fence) else sum(_size(g.gather_key) for g in gathers)
            for (_, step), gathers in zip(path, self.gathers, strict=True)
        ]
        self.passed = [sum(sizes[:1])]
        for size in sizes[1:]:
            self.passed.append(self.passed[-1] + size)
        self.live = [0 if isinstance(step, Fence) else size for (_, step), size in zip(path, sizes, strict=True)]

    def keep_what_is_soon_used_again(self) -> None:
        """The nearest reuse first, as long as what is alive at every position between stays within the limit."""
        last: dict[DeferredParam, int] = {}
        candidates: list[tuple[int, int, _Gather]] = []
        for gathers in self.gathers:
            for g in gathers:
                # Between the passes a parameter stays with the unit that has it.
                if g.gather_key in last and g.can_be_sent and self._linked(last[g.gather_key], g.position):
                    distance = self.passed[g.position - 1] - self.passed[last[g.gather_key]]
                    candidates.append((distance, last[g.gather_key], g))
                last[g.gather_key] = g.position
        for distance, start, g in sorted(candidates, key=lambda c: c[0]):
            between = range(start + 1, g.position)
            size = _size(g.gather_key)
            if distance < self.limits.reuse and all(self.live[p] + size <= self.limits.live for p in between):
                g.reused_from, g.gathered_at = start, -1
                for p in between:
                    self.live[p] += size

    def _linked(self, start: int, end: int) -> bool:
        return (start < self.n) == (end < self.n) or self.step_at[start] == self.step_at[end]

    def start_ahead_of_use(self) -> None:
        """At each position starts what is needed next, in order, as long as it fits both bounds."""
        queue = [g for gathers in self.gathers for g in gathers if g.gathered_at >= 0]
        upcoming = 0
        for p in range(2 * self.n):
            if p in self.fences:
                continue
            while upcoming < len(queue) and queue[upcoming].position <= p:
                upcoming += 1
            end = min([f for f in self.fences if f > p] + [self.n if p < self.n else 2 * self.n])
            on_the_way = 0
            for g in queue[upcoming:]:
                size = _size(g.gather_key)
                if g.gathered_at > p:
                    too_much = any(self.live[q] + size > self.limits.live for q in range(p, g.position))
                    if g.position >= end or not g.can_be_sent or on_the_way >= self.limits.prefetch or too_much:
                        break
                    g.gathered_at = p
                    for q in range(p, g.position):
                        self.live[q] += size
                on_the_way += size

    def sort_by_source(self) -> None:
        """Lists what each position has first."""
        self.by_source: dict[int, list[_Gather]] = defaultdict(list)
        for gathers in self.gathers:
            for g in gathers:
                self.by_source[g.source].append(g)

    def schedule(self, number: int) -> Schedule:
        """The orders of one unit in both passes."""
        ahead, back = number, 2 * self.n - 1 - number
        kept = frozenset(g.gather_key for g in self.gathers[back] if g.reused_from == ahead)
        return Schedule(self._orders(ahead), self._orders(back), kept, scatters_first=back + 1 in self.fences)

    def _orders(self, p: int) -> Orders:
        from_here = [g for g in self.by_source[p] if (g.position < self.n) == (p < self.n)]
        at_hand = {g.gather_key for g in self.gathers[p] if g.gathered_at != p}
        return Orders(
            gather=tuple(
                dict.fromkeys(g.gather_key for g in from_here if g.gathered_at == p and g.gather_key not in at_hand)
            ),
            send=tuple((g.gather_key, self.step_at[g.position]) for g in from_here if g.position != p),
            receive=tuple(
                (g.gather_key, self.step_at[g.source])
                for g in self.gathers[p]
                if g.source != p and (g.source < self.n) == (p < self.n)
            ),
        )


def _size(gather_key: DeferredParam) -> int:
    return math.prod(gather_key.placement.shape)
