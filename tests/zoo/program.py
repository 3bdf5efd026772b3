"""Reads from the jaxpr of a training step which collectives run over the data axes, how often, and how large."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from jzero.jaxpr import inner_jaxprs, subprogram
from jzero.sharding.mesh import DATA_AXES


class Collective(NamedTuple):
    """One equation that communicates.

    Attributes:
        kind: the name of its primitive.
        size: elements that one device puts in, or for a `reduce_scatter` gets out: the size of a shard.
        times: how often it runs in a step, by the lengths of the loops around it.
        inside: loops of unknown length and branches around it; devices may disagree there, and wait forever.
    """

    kind: str
    size: int
    times: int
    inside: tuple[str, ...]


def collectives(program: Any, times: int = 1, inside: tuple[str, ...] = ()) -> Iterator[Collective]:
    """All collectives over the data axes in a jaxpr and in everything inside it."""
    for eqn in subprogram(program).jaxpr.eqns:
        name = eqn.primitive.name
        axes = eqn.params.get("axes", eqn.params.get("axis_name", ()))
        axes = axes if isinstance(axes, (tuple, list)) else (axes,)
        if set(axes) & set(DATA_AXES) and name not in ("axis_index", "shard_map"):
            ends = eqn.outvars if name == "reduce_scatter" else eqn.invars
            yield Collective(name, sum(math.prod(v.aval.shape) for v in ends), times, inside)
        trips = eqn.params["length"] if name == "scan" else 1
        within = (*inside, name) if name in ("while", "cond") else inside
        for inner in inner_jaxprs(eqn):
            yield from collectives(inner, times * trips, within)
