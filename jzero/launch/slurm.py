"""SLURM's notations: lists of hosts, and of numbers of tasks."""

import re
from collections.abc import Mapping


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


def _first(hosts: str) -> str | None:
    head = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", head[0]) if head and head[0] else None
