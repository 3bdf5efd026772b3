"""Which GPUs a process takes, where several of them share a machine."""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path

from jzero.errors import ConfigError
from jzero.launch.environment import Launch
from jzero.launch.meeting import Neighbours


def local_device_ids(
    launch: Launch, variables: Mapping[str, str], neighbours: Neighbours, n_gpus: int
) -> list[int] | None:
    """Which of the GPUs that a process sees it takes: numbers among these, never the system's own.

    Args:
        launch: from `read_launch`.
        variables: the environment.
        neighbours: the processes that were found on this machine.
        n_gpus: how many GPUs the machine has; 0 where nobody knows.

    Returns:
        The numbers; None for all that there is.

    Raises:
        ConfigError: the GPUs cannot be divided among the processes of this machine.

    Example:
        >>> launch = Launch(5, 8, "node1:29500", n_local=4, local_rank=1)
        >>> local_device_ids(launch, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, Neighbours(4, 1, True), 8)
        [1]
        >>> local_device_ids(launch, {"CUDA_VISIBLE_DEVICES": "5"}, Neighbours(4, 1, False), 8)  # has its own already
    """
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    count = n_gpus if visible is None else len(names_of_gpus(visible))
    if own := variables.get("JAX_LOCAL_DEVICE_IDS"):
        if not re.fullmatch(r"\d+(,\d+)*", own):
            raise ConfigError(f"JAX_LOCAL_DEVICE_IDS is {own!r}; it must be numbers with commas between them.")
        return [int(number) for number in own.split(",")]
    n_local = launch.n_local or neighbours.count
    rank = launch.local_rank if launch.local_rank is not None and launch.n_local else neighbours.rank
    if n_local == 1 or (visible is not None and not count):
        return None
    if not count:
        return [rank]
    of_step = variables.get("SLURM_GPUS_ON_NODE", "") if launch.launcher == "SLURM" else ""
    bound = count < n_local or not neighbours.see_the_same or (of_step.isdecimal() and count < int(of_step))
    if bound:
        return None
    if count % n_local:
        raise ConfigError(
            f"{n_local} processes of this machine share {count} GPUs, which cannot be divided evenly; start as many "
            "processes as GPUs or a divisor of that, or let JAX_LOCAL_DEVICE_IDS say which GPUs each of them takes."
        )
    each = count // n_local
    return list(range(rank * each, (rank + 1) * each))


def count_gpus() -> int:
    """NVIDIA's GPUs of which this system has a device file."""
    folder = Path("/dev")
    return sum(bool(re.fullmatch(r"nvidia\d+", file.name)) for file in folder.iterdir()) if folder.is_dir() else 0


def names_of_gpus(visible: str) -> list[str]:
    """The GPUs that a CUDA_VISIBLE_DEVICES shows: those before the first one that is none.

    Example:
        >>> names_of_gpus("0, GPU-1f,-1,2")
        ['0', 'GPU-1f']
    """
    names = (name.strip() for name in visible.split(","))
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
