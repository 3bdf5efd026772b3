"""What leaves a GPU over which links: to GPUs of its own node, or to other nodes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

_RINGS = ("all-gather", "reduce-scatter", "all-reduce")


class Sent(NamedTuple):
    """Bytes that one GPU sends in collectives of one kind along the same mesh axes, which are longer than 1."""

    kind: str
    axes: tuple[str, ...]
    n_bytes: int


@dataclass(frozen=True)
class LinkTraffic:
    """Bytes that one GPU sends in a step, by kind of collective.

    Attributes:
        inside: to GPUs of its own node.
        across: to other nodes.
    """

    inside: Mapping[str, int]
    across: Mapping[str, int]


class GroupTraffic(NamedTuple):
    """Bytes that one GPU sends to a group of GPUs, some of which share its node."""

    kind: str
    n_bytes: int
    group: int
    per_node: int


def divided(sent: Iterable[GroupTraffic]) -> LinkTraffic:
    """Divides what is sent into what stays inside nodes and what leaves them.

    Example:
        >>> divided([GroupTraffic("all-gather", 800, 64, 8)])
        LinkTraffic(inside={'all-gather': 700}, across={'all-gather': 100})
    """
    inside, across = Counter[str](), Counter[str]()
    for kind, n_bytes, group, per_node in sent:
        if per_node >= group:
            share = 0.0
        elif kind in _RINGS:  # they pass the nodes in rings, whose members share what leaves a node
            share = 1 / per_node
        else:
            share = (group - per_node) / (group - 1)
        leaves = round(n_bytes * share)
        inside[kind] += n_bytes - leaves
        across[kind] += leaves
    return LinkTraffic({k: n for k, n in inside.items() if n}, {k: n for k, n in across.items() if n})
