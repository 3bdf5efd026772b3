"""SLURM's notations: lists of hosts, and of numbers of tasks."""

import itertools
import re
from collections.abc import Iterator, Mapping

_LISTED = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")


def first_host(variables: Mapping[str, str]) -> str | None:
    """The first host of the step; its tasks are numbered from there.

    Example:
        >>> first_host({"SLURM_STEP_NODELIST": "gpu-a[007-012,20],gpu-b3"})
        'gpu-a007'
    """
    return _first(variables.get("SLURM_STEP_NODELIST", ""))


def first_host_of_job(variables: Mapping[str, str]) -> str | None:
    """The first host of the job, where `mpirun` puts its first process. Its helpers have steps of their own.

    Example:
        >>> first_host_of_job({"SLURM_STEP_NODELIST": "gpu2", "SLURM_JOB_NODELIST": "gpu[1-2]"})
        'gpu1'
    """
    return _first(variables.get("SLURM_JOB_NODELIST", ""))


def tasks_on_node(variables: Mapping[str, str]) -> int | None:
    """How many tasks of the step are on this node.

    Example:
        >>> tasks_on_node({"SLURM_STEP_TASKS_PER_NODE": "3,1(x2)", "SLURM_NODEID": "2"})
        1
    """
    counts: list[int] = []
    for part in variables.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        if found := re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part):
            counts += [int(found[1])] * int(found[2] or 1)
    node = variables.get("SLURM_NODEID", "")
    return counts[int(node)] if node.isdecimal() and int(node) < len(counts) else None


def hosts_of(text: str) -> list[str]:
    """All hosts of a list as SLURM writes it; several brackets of one name multiply.

    Example:
        >>> hosts_of("gpu-a[007-009,20],login,rack[1-2]n[1-2]")
        ['gpu-a007', 'gpu-a008', 'gpu-a009', 'gpu-a20', 'login', 'rack1n1', 'rack1n2', 'rack2n1', 'rack2n2']
    """
    found = []
    for name in _LISTED.findall(text):
        parts = [part for part in re.split(r"(\[[^\]]*\])", name) if part]
        choices = [list(_numbers(part[1:-1])) if part[0] == "[" else [part] for part in parts]
        found += ["".join(combination) for combination in itertools.product(*choices)]
    return found


def _numbers(text: str) -> Iterator[str]:
    """The numbers of a bracket, with as many digits as its ranges begin with."""
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if dash and low.isdecimal() and high.isdecimal():
            yield from (str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
        else:
            yield part


def _first(hosts: str) -> str | None:
    return next(iter(hosts_of(hosts)), None)
