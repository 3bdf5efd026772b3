"""One process of many finds the others from what its launcher left in the environment.

DeepSpeed's launcher and torchrun say it with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; SLURM and Open MPI with
variables of their own, which JAX reads itself.
"""

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import jax

from jzero.errors import ConfigError
from jzero.launch.agreement import agree, facts_of_process
from jzero.launch.failure import end_others_on_failure

PATIENCE_SECONDS = 20.0
"""How long processes usually need at most to find each other."""

_JOB_STEP_SIZES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")  # absent in a batch script that runs on its own
_LOCAL_SIZES = ("LOCAL_SIZE", "LOCAL_WORLD_SIZE")  # processes on this machine: DeepSpeed's and torchrun's names


@dataclass(frozen=True)
class Launch:
    """What a launcher has told a process of several.

    Attributes:
        rank: its number; None where JAX reads that itself.
        n_processes: how many there are; None likewise.
        coordinator: the first process's "address:port"; None likewise.
        n_local: processes on this machine; None where the launcher does not say.
        local_rank: its number among those, where there are several.
    """

    rank: int | None = None
    n_processes: int | None = None
    coordinator: str | None = None
    n_local: int | None = None
    local_rank: int | None = None


def read_launch(variables: Mapping[str, str]) -> Launch | None:
    """Reads what a launcher left in the environment.

    Args:
        variables: the environment.

    Returns:
        What it says; None for a process that is alone.

    Raises:
        ConfigError: some variables are missing or do not fit together.

    Example:
        >>> several = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
        >>> read_launch(several).coordinator, read_launch({"RANK": "0", "WORLD_SIZE": "1"})
        ('node1:29500', None)
    """
    if "RANK" in variables and "WORLD_SIZE" in variables:
        rank, n_processes = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
        if n_processes == 1:
            return None
        if not 0 <= rank < n_processes:
            raise ConfigError(f"The environment has RANK={rank} and WORLD_SIZE={n_processes}; ranks count from 0.")
        address, port = variables.get("MASTER_ADDR"), _number(variables, "MASTER_PORT")
        if not address:
            raise ConfigError(f"The environment has RANK={rank} and WORLD_SIZE={n_processes}, but no MASTER_ADDR.")
        n_local = max((_number(variables, name) for name in _LOCAL_SIZES if name in variables), default=None)
        local_rank = _number(variables, "LOCAL_RANK") if (n_local or 1) > 1 else None
        return Launch(rank, n_processes, f"{address}:{port}", n_local, local_rank)
    if any(_number(variables, name) > 1 for name in _JOB_STEP_SIZES if name in variables):
        return Launch()
    return None


def initialize_from_environment(environment: Mapping[str, str] | None = None) -> bool:
    """Connects this process with the others of its run, if a launcher started several; call it before any JAX.

    A process uses all devices of its machine. Only where the launcher started several on one machine, one for each GPU
    as DeepSpeed's does, it uses the GPU number LOCAL_RANK. If one process fails from here on, all of them end.

    Args:
        environment: the variables; `os.environ` by default.

    Returns:
        Whether there are several processes. If not, nothing has changed.

    Raises:
        ConfigError: some variables are missing or do not fit together, or the processes have other versions.

    Example:
        >>> initialize_from_environment({"RANK": "0", "WORLD_SIZE": "1"})
        False
    """
    launch = read_launch(os.environ if environment is None else environment)
    if launch is None:
        return False
    with _saying_what_it_waits_for(launch):
        if launch.coordinator is None:
            jax.distributed.initialize()
        else:
            jax.distributed.initialize(
                launch.coordinator,
                launch.n_processes,
                launch.rank,
                local_device_ids=launch.local_rank,
                cluster_detection_method="deactivate",
            )
    end_others_on_failure()
    agree(facts_of_process(devices=False))
    return True


@contextmanager
def _saying_what_it_waits_for(launch: Launch) -> Iterator[None]:
    """Says once what a process waits for, if it does so for long: JAX does not, and ends it after five minutes."""
    if launch.coordinator is None:
        what = "for the other processes of this job step; all tasks must start the same program."
    else:
        what = (
            f"for {launch.n_processes} processes in all at {launch.coordinator}; each of them must be started, with "
            f"the same WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and a RANK of its own (here {launch.rank})."
        )
    sentence = f"Still waiting {what}"
    timer = threading.Timer(PATIENCE_SECONDS, lambda: print(sentence, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _number(variables: Mapping[str, str], name: str) -> int:
    text = variables.get(name)
    if text is None or not text.isdecimal():
        raise ConfigError(f"The environment variable {name} is {text!r}; it must be a whole number.")
    return int(text)
