"""What happens to each parameter in a training step: where it lies, when it is gathered, and what travels.

Nothing is estimated. The step is traced, dead code is removed, and every collective found in it is counted as often as
its loops run; collectives know which parameter they carry (`jzero.sharding.collectives.label`).
"""

import dataclasses
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import jax
from rich.table import Table

from jzero.base.units import format_bytes
from jzero.jaxpr import Program, every_equation, name_of, trace
from jzero.jaxpr.primitives import ALL_GATHER, SINKS
from jzero.sharding.placement import Placement, path_name
from jzero.sharding.trees import is_placement
from jzero.zero.build import Functional
from jzero.zero.step import train_step

_LABEL = re.compile(r"(gather|scatter)\[([^\]]*?)(?: for ([^\]]*))?\]")
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


class Explanation(tuple[Leaf, ...]):
    """One `Leaf` per parameter, in the order of the parameter tree."""

    def table(self) -> Table:
        """The same as a rich table."""
        table = Table(title="Parameters in one training step")
        for heading in ("parameter", "shape", "lies", "used by", "gathered", "scattered"):
            table.add_column(heading)
        for leaf in self:
            table.add_row(
                leaf.name + ("" if leaf.trainable else " (frozen)"),
                "x".join(map(str, leaf.shape)) or "scalar",
                leaf.placement,
                ", ".join(leaf.used_by),
                _travels(leaf.gathers, leaf.gather_dtype, leaf.gather_bytes),
                _travels(leaf.scatters, leaf.scatter_dtype, leaf.scatter_bytes),
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
    spec = functional.spec
    paths, treedef = jax.tree_util.tree_flatten_with_path(spec.placements, is_leaf=is_placement)
    trainable = treedef.flatten_up_to(spec.trainable)
    return Explanation(
        _leaf(path_name(path), placement, train, found)
        for (path, placement), train in zip(paths, trainable, strict=True)
    )


class _Collective(NamedTuple):
    kind: str
    name: str
    use: str
    dtype: str
    n_bytes: int
    times: int


def _leaf(name: str, placement: Placement, train: bool, found: dict[tuple[str, str], list[_Collective]]) -> Leaf:
    gathers, scatters = found["gather", name], found["scatter", name]
    return Leaf(
        name=name,
        shape=placement.shape,
        placement=_in_words(placement),
        trainable=train,
        used_by=tuple(dict.fromkeys(c.use for c in (*gathers, *scatters) if c.use)),
        gathers=sum(c.times for c in gathers),
        gather_dtype=", ".join(dict.fromkeys(c.dtype for c in gathers)),
        gather_bytes=sum(c.n_bytes * c.times for c in gathers),
        scatters=sum(c.times for c in scatters),
        scatter_dtype=", ".join(dict.fromkeys(c.dtype for c in scatters)),
        scatter_bytes=sum(c.n_bytes * c.times for c in scatters),
    )


def _in_words(placement: Placement) -> str:
    if placement.dim is None:
        return "whole on every device"
    padded = f", padded to {placement.padded_shape[placement.dim]}" if placement.padding else ""
    return f"dimension {placement.dim} over {placement.n_shards} devices{padded}"


def _travels(times: int, dtype: str, n_bytes: int) -> str:
    return f"{times} x {dtype}, {format_bytes(n_bytes)}" if times else ""


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
