"""DeepSpeed's hostfile: a line a host, `NAME slots=N`; what is taken of it is chosen in `selection`."""

import re
from pathlib import Path
from typing import NamedTuple

from jzero.errors import ConfigError

LOCAL = "localhost"
"""The host that a job without a hostfile runs on."""


class Host(NamedTuple):
    """A machine of a job.

    Attributes:
        name: as the hostfile, or SLURM, calls it.
        slots: the numbers of its GPUs, or of its processes where it has none; None for all that it has.
    """

    name: str
    slots: tuple[int, ...] | None = None


def read_hostfile(path: Path) -> list[Host]:
    """The hosts of a hostfile, in its order.

    Raises:
        ConfigError: it cannot be read, or a line is wrong.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"--hostfile {path}: cannot read the file: {why}.") from None
    return parse_hostfile(text, str(path))


def parse_hostfile(text: str, file: str = "hostfile") -> list[Host]:
    r"""The hosts that a hostfile's text names; empty lines and those that begin with # say nothing.

    Args:
        text: of the hostfile.
        file: what to call it in messages.

    Raises:
        ConfigError: a line is wrong, a host is named twice, or none is named.

    Example:
        >>> parse_hostfile("# two machines\nnode1 slots=2\nnode2 slots=1\n")
        [Host(name='node1', slots=(0, 1)), Host(name='node2', slots=(0,))]
    """
    found: dict[str, int] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        match = re.fullmatch(r"(\S+)\s+slots=(\d{1,6})", said)
        if match is None:
            raise ConfigError(f"{file}, line {number}: {said!r} must be NAME slots=N, such as node1 slots=8.")
        name, slots = check_name(match[1], f"{file}, line {number}"), int(match[2])
        if name in found:
            raise ConfigError(f"{file}, line {number}: {name} is named already in line {lines[name]}; give it once.")
        if slots < 1:
            raise ConfigError(f"{file}, line {number}: {name} has slots=0; leave the host out, or give it one or more.")
        found[name], lines[name] = slots, number
    if not found:
        raise ConfigError(f"{file}: names no host; write a line NAME slots=N for each.")
    return [Host(name, tuple(range(slots))) for name, slots in found.items()]


def check_name(name: str, where: str) -> str:
    """A host's name, if it can be one: it is handed to other programs, so it must be neither option nor command.

    Example:
        >>> check_name("me@node-1.cluster", "hostfile, line 1")
        'me@node-1.cluster'
    """
    if not re.fullmatch(r"[A-Za-z0-9_\[][A-Za-z0-9_.@:%\[\]-]*", name):
        raise ConfigError(
            f"{where}: {name!r} cannot be a host; a name has letters, digits and _ . - @ : % only, and begins with "
            "none of those but _."
        )
    return name
