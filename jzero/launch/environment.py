"""What a launcher left in the environment of one process of many, read by the table in `jzero.launch.launchers`.

JAX's own detection stays off: it differs between versions, leaves GPUs idle without a word, and takes N processes that
it does not know for N runs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from jzero.errors import ConfigError
from jzero.launch.launchers import HALF_SAID, LAUNCHERS, LOOPBACK, Launcher, first

_SIZES_OF_JOBS = ("SLURM_STEP_NUM_TASKS",)  # without a rank it is no task of the step


@dataclass(frozen=True)
class Launch:
    """What a launcher has told a process of several.

    Attributes:
        rank: its number.
        n_processes: how many there are.
        coordinator: the first process's "address:port".
        n_local: processes on this machine; None where the launcher does not say.
        local_rank: its number among those; None likewise.
        launcher: who says so.
        start: the same for all processes of one start, and another one for the next, where the launcher tells them
            apart.
    """

    rank: int
    n_processes: int
    coordinator: str
    n_local: int | None = None
    local_rank: int | None = None
    launcher: str = ""
    start: str = ""

    @property
    def host(self) -> str:
        """The first process's host."""
        return self.coordinator.rpartition(":")[0].strip("[]")


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
    if variables.get("JZERO_NUM_PROCESSES") == "1":
        return None
    speaking = [launcher for launcher in LAUNCHERS if launcher.speaks(variables)]
    for launcher in speaking:
        n_processes = _number(variables, first(variables, launcher.size))
        if n_processes > 1:
            return _read(launcher, variables, n_processes)
        if n_processes == 1 and launcher.decides:
            return None
        if n_processes == 0:
            raise ConfigError(f"{first(variables, launcher.size)} is 0; it must be the number of processes.")
    _refuse_half_said(variables, alone=bool(speaking))
    return None


def _read(launcher: Launcher, variables: Mapping[str, str], n_processes: int) -> Launch:
    rank_name, size_name = first(variables, launcher.rank), first(variables, launcher.size)
    rank = _number(variables, rank_name)
    if rank >= n_processes:
        raise ConfigError(f"The environment has {rank_name}={rank} and {size_name}={n_processes}; ranks count from 0.")
    size, own = first(variables, launcher.local_size), first(variables, launcher.local_rank)
    n_local = _number(variables, size) if size else launcher.n_local(variables)
    local_rank = _number(variables, own) if own else None
    if n_local is not None and n_local > 1:
        if local_rank is None:
            raise ConfigError(
                f"The environment has {size}={n_local} processes on this machine, but no {launcher.local_rank[0]}."
            )
        if local_rank >= n_local:
            raise ConfigError(
                f"The environment has {own}={local_rank}, of {n_local} on this machine; they count from 0."
            )
    place = _coordinator(launcher, variables, n_local == n_processes)
    if place is None:
        raise ConfigError(
            f"The environment has {rank_name}={rank} and {size_name}={n_processes}, but does not say where the first "
            f"process is; {launcher.advice}."
        )
    return Launch(rank, n_processes, place, n_local, local_rank, launcher.name, launcher.start(variables))


def _coordinator(launcher: Launcher, variables: Mapping[str, str], all_here: bool) -> str | None:
    """Where the first process is: as it was given, else here, else as the launcher says it."""
    given = first(variables, ("JZERO_COORDINATOR", "JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_IP", "MASTER_ADDR"))
    host = variables[given] if given else LOOPBACK if all_here else launcher.host(variables)
    if host is None or re.fullmatch(r"[^:\s]+:\d+|\[[^\]\s]+\]:\d+", host):
        return host
    name = first(
        variables, ("JAX_COORDINATOR_PORT", *launcher.port_name, *(["MASTER_PORT"] * (given == "MASTER_ADDR")))
    )
    if name == "MASTER_PORT" and variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        name = None  # torchrun itself listens there
    port = launcher.port(variables) if name is None else _number(variables, name)
    if not 0 < port < 65536:
        raise ConfigError(f"The environment variable {name} is {port}; a port is a number from 1 to 65535.")
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _refuse_half_said(variables: Mapping[str, str], *, alone: bool) -> None:
    """A rank without a size, or several processes without a rank, would be N runs into one folder."""
    for launcher in LAUNCHERS:
        size, rank = first(variables, launcher.size), first(variables, launcher.rank)
        named = not launcher.needs or any(name in variables for name in launcher.needs)
        if not named or size is None or rank is not None or size in _SIZES_OF_JOBS:
            continue
        if _number(variables, size) > 1:
            raise ConfigError(
                f"The environment has {size}={variables[size]}, but no {launcher.rank[0]}: each process must "
                "know which of them it is. Where each is to train on its own, set JZERO_NUM_PROCESSES=1."
            )
    if alone:
        return
    for name, needs in HALF_SAID.items():
        if variables.get(name, "") != "":
            raise ConfigError(
                f"The environment has {name}={variables[name]}, so this is one process of several, but does not say "
                f"enough to find the others: set {needs}. Where each is to train on its own, set JZERO_NUM_PROCESSES=1."
            )


def _number(variables: Mapping[str, str], name: str | None) -> int:
    text = variables.get(name or "")
    if text is None or not re.fullmatch("[0-9]+", text):
        raise ConfigError(f"The environment variable {name} is {text!r}; it must be a whole number.")
    return int(text)
