"""What happens to each parameter in a training step: where it lies, when it is gathered, and what travels.

It is read off the step itself: traced, without dead code, every collective counted as often as its loops run.
Collectives know which parameter they carry (`jzero.sharding.collectives.label`). A loop whose length depends on data
counts as one round, and what the compiler adds by itself, for the update or the tensor axis, is not in a traced
program: `jzero plan` has that.
"""

import dataclasses
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
from rich.table import Table

from jzero.base.terminal import escape
from jzero.base.units import format_bytes
from jzero.explain.layouts import LeafLayout, parameter_layouts
from jzero.jaxpr import Program, every_equation, name_of, trace
from jzero.jaxpr.primitives import ALL_GATHER, SINKS
from jzero.zero.build import Functional
from jzero.zero.step import train_step

_LABEL = re.compile(r"((?:gather|scatter)(?:_across)?)\[([^\]]*?)(?: for ([^\]]*))?\]")
_COLLECTIVES = SINKS | {ALL_GATHER}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One parameter in one training step.

    Attributes:
        name: its dotted name.
        shape: its true shape.
        placement: how it lies over the devices, in words.
        trainable: whether it gets a gradient.
        used_by: the primitives it is gathered for. Those that hold programs of their own, such as `cond` and `while`,
            get it in full in front of them.
        gathers: gathers in one step, of a layer each where a loop slices the parameter.
        gather_dtype: the dtype in which it travels.
        gather_bytes: bytes of all that, gathered, in one step.
        scatters: collectives that sum its gradient; 0 where it is summed together with other whole parameters.
        scatter_dtype: the dtype in which its gradient travels.
        scatter_bytes: bytes of all that, before they are scattered, in one step.
        across_gather_bytes: at two levels, bytes of the group's part that is gathered over the groups, once a step.
        across_scatter_bytes: with groups, bytes of the group's part of the gradient whose sums are added over the
            groups, once a step.
    """

    name: str
    shape: tuple[int, ...]
    placement: str
    trainable: bool
    used_by: tuple[str, ...]
    gathers: int
    gather_dtype: str
    gather_bytes: int
    scatters: int
    scatter_dtype: str
    scatter_bytes: int
    across_gather_bytes: int = 0
    across_scatter_bytes: int = 0


class Explanation(tuple[Leaf, ...]):
    """One `Leaf` per parameter, in the order of the parameter tree."""

    def table(self) -> Table:
        """The same as a rich table."""
        table = Table(title="Parameters in one training step")
        across = any(leaf.across_gather_bytes or leaf.across_scatter_bytes for leaf in self)
        headings = ["parameter", "shape", "lies", "used by", "gathered", "scattered"]
        for heading in [*headings, *["across groups"] * across]:
            table.add_column(heading)
        for leaf in self:
            table.add_row(
                escape(leaf.name) + ("" if leaf.trainable else " (frozen)"),
                "x".join(map(str, leaf.shape)) or "scalar",
                leaf.placement,
                escape(", ".join(leaf.used_by)),
                _travels(leaf.gathers, leaf.gather_dtype, leaf.gather_bytes),
                _travels(leaf.scatters, leaf.scatter_dtype, leaf.scatter_bytes),
                *[_across(leaf)] * across,
            )
        return table

    def to_json(self) -> str:
        """The same as a JSON list of objects."""
        return json.dumps([dataclasses.asdict(leaf) for leaf in self])


def explain(functional: Functional) -> Explanation:
    """Traces the training step and tells what it does with each parameter.

    Args:
        functional: from `jzero.functional`; `engine.functional` of an engine.

    Returns:
        One entry per parameter.
    """
    step, _ = trace(train_step(functional.spec), functional.state, functional.batch)
    found: dict[tuple[str, str], list[_Collective]] = defaultdict(list)
    for collective in _collectives(step):
        found[collective.kind, collective.name].append(collective)
    layouts, trainable = parameter_layouts(functional), jax.tree.leaves(functional.spec.trainable)
    return Explanation(
        _leaf(leaf, layouts.in_words(leaf), train, found) for leaf, train in zip(layouts.leaves, trainable, strict=True)
    )


class SentByLinks(NamedTuple):
    """Bytes that a device sends in a step: to the others of its group, and to other groups."""

    inside: int
    across: int


def sent_by_links(leaves: Sequence[Leaf], mesh_shape: Mapping[str, int]) -> SentByLinks:
    """Adds up what parameters and their gradients send, whole ones left out.

    Args:
        leaves: from `explain`.
        mesh_shape: axis -> size. What two levels gather over the groups is sent by each device once, and so are sums
            that are scattered; where every group keeps them they go twice around.
    """
    share = lambda n: (n - 1) / n
    inside = sum(leaf.gather_bytes + leaf.scatter_bytes for leaf in leaves) * share(mesh_shape["shard"])
    two_level = any(leaf.across_gather_bytes for leaf in leaves)
    sums = sum(leaf.across_scatter_bytes for leaf in leaves) * (1 if two_level else 2)
    across = (sum(leaf.across_gather_bytes for leaf in leaves) + sums) * share(mesh_shape["replica"])
    return SentByLinks(round(inside), round(across))


class _Collective(NamedTuple):
    kind: str
    name: str
    use: str
    dtype: str
    n_bytes: int
    times: int


def _leaf(leaf: LeafLayout, placement: str, train: bool, found: dict[tuple[str, str], list[_Collective]]) -> Leaf:
    gathers, scatters = found["gather", leaf.name], found["scatter", leaf.name]
    return Leaf(
        name=leaf.name,
        shape=leaf.shape,
        placement=placement,
        trainable=train,
        used_by=tuple(dict.fromkeys(c.use for c in (*gathers, *scatters) if c.use)),
        gathers=sum(c.times for c in gathers),
        gather_dtype=", ".join(dict.fromkeys(c.dtype for c in gathers)),
        gather_bytes=sum(c.n_bytes * c.times for c in gathers),
        scatters=sum(c.times for c in scatters),
        scatter_dtype=", ".join(dict.fromkeys(c.dtype for c in scatters)),
        scatter_bytes=sum(c.n_bytes * c.times for c in scatters),
        across_gather_bytes=sum(c.n_bytes * c.times for c in found["gather_across", leaf.name]),
        across_scatter_bytes=sum(c.n_bytes * c.times for c in found["scatter_across", leaf.name]),
    )


def _travels(times: int, dtype: str, n_bytes: int) -> str:
    return f"{times} x {dtype}, {format_bytes(n_bytes)}" if times else ""


def _across(leaf: Leaf) -> str:
    """What crosses groups in a step: parameters, and gradients."""
    parts = {"gathered": leaf.across_gather_bytes, "summed": leaf.across_scatter_bytes}
    return ", ".join(f"{format_bytes(n)} {what}" for what, n in parts.items() if n)


def _collectives(program: Program) -> Iterator[_Collective]:
    """The labelled collectives of a jaxpr; loops whose length depends on data count as one round."""
    for eqn, times, scope in every_equation(program):
        # A stack gathered layer by layer has its label outside of the loop.
        labels = _LABEL.findall(scope)
        if name_of(eqn) in _COLLECTIVES and labels:
            kind, name, use = labels[-1]
            # The larger side of the collective: what is gathered, or what is not scattered yet.
            largest = max((v.aval for v in (*eqn.invars, *eqn.outvars)), key=lambda a: a.size)
            n_bytes = math.prod(largest.shape) * largest.dtype.itemsize
            yield _Collective(kind, name, use, largest.dtype.name, n_bytes, times)
