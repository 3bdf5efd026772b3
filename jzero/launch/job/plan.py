"""What a launcher was asked for, and how an attempt at it ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from jzero.launch.hosts.hostfile import Host
from jzero.launch.hosts.reach import Reach


@dataclass(frozen=True)
class Job:
    """What was asked for.

    Attributes:
        command: what each process runs.
        hosts: where; those that a filter left.
        reach: how these are reached.
        folder: the working directory, the same on all of them.
        variables: of the environment, for other hosts.
        procs_per_node: processes on each; None for one a GPU.
        logs: the folder for their output; empty for none.
        master_addr: the first host's address; None for what its agent finds.
        master_port: a port that is free there; None for one that its agent picks.
        grace: seconds that processes have to end, once one has failed.
        bind: whether to bind processes to the CPUs near their GPUs.
        min_nodes: with fewer hosts it does not start; None for all of them.
        max_nodes: with more hosts it does not start.
        wait: seconds to wait for hosts that do not answer.
    """

    command: tuple[str, ...]
    hosts: tuple[Host, ...]
    reach: Reach = field(default_factory=Reach)
    folder: str = "."
    variables: Mapping[str, str] = field(default_factory=dict)
    procs_per_node: int | None = None
    logs: str = "logs"
    master_addr: str | None = None
    master_port: int | None = None
    grace: float = 10.0
    bind: bool = True
    min_nodes: int | None = None
    max_nodes: int | None = None
    wait: float = 120.0


class Failure(NamedTuple):
    """The first thing that went wrong in an attempt.

    Attributes:
        status: what the launcher ends with if it does not start again.
        sentence: what happened, and where.
        tail: the last lines of the process.
    """

    status: int
    sentence: str
    tail: tuple[str, ...] = ()


class Ended(NamedTuple):
    """How an attempt ended.

    Attributes:
        failure: the first one; None if all processes returned 0.
        signal: the number of the signal that was handed on to the processes, and ended one; or 0.
        exited: whether the process that failed ended by itself, rather than by a signal.
    """

    failure: Failure | None
    signal: int = 0
    exited: bool = True
