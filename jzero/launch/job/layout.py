"""Which processes run on which node, with which GPUs."""

from collections.abc import Sequence
from typing import NamedTuple

from jzero.errors import ConfigError
from jzero.launch.agent.orders import Process
from jzero.launch.hosts.hostfile import Host


class Node(NamedTuple):
    """A host that has answered.

    Attributes:
        host: what of it is taken.
        n_gpus: how many GPUs it has.
    """

    host: Host
    n_gpus: int


def processes_of(nodes: Sequence[Node], procs_per_node: int | None = None) -> list[tuple[Process, ...]]:
    """The processes of each node: one a GPU, or as many as are asked for; ranks are counted node after node.

    A node without GPUs runs a process for each of its slots, or one, if the hostfile says nothing.

    Args:
        nodes: in the order of their ranks.
        procs_per_node: how many on each.

    Raises:
        ConfigError: a node has not the GPUs that are asked for, or its processes cannot share them evenly.

    Example:
        >>> processes_of([Node(Host("a", (0, 2)), 4), Node(Host("b"), 0)])
        [(Process(rank=0, local_rank=0, gpus=(0,)), Process(rank=1, local_rank=1, gpus=(2,))),
         (Process(rank=2, local_rank=0, gpus=()),)]
    """
    found: list[tuple[Process, ...]] = []
    rank = 0
    for host, n_gpus in nodes:
        gpus = _gpus(host, n_gpus)
        count = procs_per_node or len(gpus) or len(host.slots or (0,))
        if gpus and len(gpus) % count:
            raise ConfigError(
                f"--procs-per-node {count}: {host.name} gives {len(gpus)} GPUs, which {count} processes cannot share "
                "evenly; ask for a divisor of that."
            )
        each = len(gpus) // count
        found.append(tuple(Process(rank + i, i, tuple(gpus[i * each : (i + 1) * each])) for i in range(count)))
        rank += count
    return found


def _gpus(host: Host, n_gpus: int) -> Sequence[int]:
    if not n_gpus or host.slots is None:
        return range(n_gpus)
    if max(host.slots) >= n_gpus:
        raise ConfigError(
            f"{host.name} has {n_gpus} GPU{'s' * (n_gpus != 1)} that can be seen there, and slot {max(host.slots)} is "
            "asked for; slots count from 0. Correct the hostfile, the filter or --num_gpus."
        )
    return host.slots


def fitting(devices: Sequence[int], batch: int, least: int) -> int:
    """How many nodes, of those that are there, share the samples of a step evenly; 0 if no number does.

    Args:
        devices: of each node, in the order in which nodes are taken.
        batch: samples of a step.
        least: so many nodes are needed.

    Example:
        >>> fitting([4, 4, 4], 32, 1), fitting([4, 4, 4], 36, 1), fitting([4], 6, 1)
        (2, 3, 0)
    """
    return next((n for n in range(len(devices), max(least, 1) - 1, -1) if batch % sum(devices[:n]) == 0), 0)
