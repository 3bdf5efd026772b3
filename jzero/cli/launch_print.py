"""`jzero launch --print KIND`: what would start the job by a cluster's own means."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from jzero.errors import ConfigError
from jzero.launch.hosts.hostfile import Host, read_hostfile
from jzero.launch.hosts.selection import Choice, chosen
from jzero.launch.hosts.variables import exported, files_of_variables
from jzero.launch.scripts.facts import Facts
from jzero.launch.scripts.kinds import KINDS


def printed(
    kind: str,
    command: Sequence[str],
    hostfile: Path | None,
    choice: Choice,
    environment: Mapping[str, str],
    *,
    export: Sequence[str],
    **more: str | int | None,
) -> str:
    """The script or manifest.

    Args:
        kind: which.
        command: what each process runs.
        hostfile: the hosts, if they are known.
        choice: which of them; without a hostfile, how many there are to be.
        environment: of the launcher, in which `export` may name variables.
        export: variables that the script sets.
        **more: `name`, `image`, `max_restarts` and `port` of the job.

    Raises:
        ConfigError: something is missing, or does not fit.
    """
    if kind not in KINDS:
        raise ConfigError(f"--print {kind}: must be one of {', '.join(KINDS)}.")
    hosts = None if hostfile is None else chosen(read_hostfile(hostfile), choice)
    if hosts is None and (choice.include or choice.exclude):
        raise ConfigError("--include and --exclude choose among the hosts of a --hostfile; give one, or --num-nodes.")
    named = {name: environment[name] for name in export if name in environment}
    here = kind in ("slurm", "mpirun")
    facts = Facts(
        _command(command),
        nodes=choice.num_nodes or 1 if hosts is None else len(hosts),
        gpus=_gpus(hosts, choice),
        hosts=tuple(host.name for host in hosts or ()),
        folder=str(Path.cwd()) if here else "",
        variables=exported(named, export, files_of_variables(environment, Path.home(), Path.cwd())),
        **{key: value for key, value in more.items() if value is not None},  # pyright: ignore[reportArgumentType]
    )
    return KINDS[kind](facts)


def _command(command: Sequence[str]) -> tuple[str, ...]:
    """As it is called on any machine: by its name, where the launcher would take this machine's own paths."""
    if command[0] == "train":
        return ("jzero", *command)
    return ("python", *command) if command[0].endswith(".py") else tuple(command)


def _gpus(hosts: Sequence[Host] | None, choice: Choice) -> int:
    if hosts is None:
        if choice.num_gpus is None:
            raise ConfigError("--num-gpus is needed: how many GPUs each node has.")
        return choice.num_gpus
    counts = {len(host.slots or ()) for host in hosts}
    if len(counts) > 1:
        raise ConfigError(
            f"The hosts have {' and '.join(map(str, sorted(counts)))} slots; a printed script needs the same number on "
            "each: choose by --include, --exclude or --num-gpus."
        )
    return counts.pop()
