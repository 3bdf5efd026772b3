"""What of the hosts a job takes, in DeepSpeed's words: `--include`, `--exclude`, `--num_nodes`, `--num_gpus`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jzero.errors import ConfigError
from jzero.launch.hosts.hostfile import Host


@dataclass(frozen=True)
class Choice:
    """What was asked for.

    Attributes:
        include: `NAME[:SLOT,...]@...`, only these; empty for all.
        exclude: the same, all but these.
        num_nodes: the first so many hosts; None for all.
        num_gpus: the first so many slots of each host; None for all.
    """

    include: str = ""
    exclude: str = ""
    num_nodes: int | None = None
    num_gpus: int | None = None


def chosen(hosts: Sequence[Host], choice: Choice) -> list[Host]:
    """The hosts and slots that a job takes, in the order of the hostfile.

    Args:
        hosts: what there is.
        choice: what is wanted of it.

    Raises:
        ConfigError: a host or a slot is not there, nothing is left, or two filters contradict each other.

    Example:
        >>> two = [Host("w0", (0, 1, 2, 3)), Host("w1", (0, 1, 2, 3))]
        >>> chosen(two, Choice(exclude="w0:0,1@w1:3"))
        [Host(name='w0', slots=(2, 3)), Host(name='w1', slots=(0, 1, 2))]
        >>> chosen(two, Choice(num_nodes=1, num_gpus=2))
        [Host(name='w0', slots=(0, 1))]
    """
    if choice.include and choice.exclude:
        raise ConfigError("--include and --exclude cannot be given together; say it with one of them.")
    if (choice.include or choice.exclude) and (choice.num_nodes is not None or choice.num_gpus is not None):
        raise ConfigError(
            "--include and --exclude cannot be given beside --num_nodes or --num_gpus; say it with the filter alone."
        )
    if choice.include:
        return _included(hosts, choice.include)
    if choice.exclude:
        return _excluded(hosts, choice.exclude)
    return _first(hosts, choice)


def _included(hosts: Sequence[Host], text: str) -> list[Host]:
    wanted = _parsed(hosts, text, "--include")
    return [
        Host(host.name, host.slots if None in wanted[host.name] else _sorted(wanted[host.name]))
        for host in hosts
        if host.name in wanted
    ]


def _excluded(hosts: Sequence[Host], text: str) -> list[Host]:
    unwanted, left = _parsed(hosts, text, "--exclude"), []
    for host in hosts:
        without = unwanted.get(host.name, set())
        if not without:
            left.append(host)
        elif None in without:
            continue
        elif host.slots is None:
            raise ConfigError(
                f"--exclude {text}: how many slots {host.name} has is not known here; name those to take by --include, "
                "or give a --hostfile."
            )
        elif slots := tuple(slot for slot in host.slots if slot not in without):
            left.append(Host(host.name, slots))
    if not left:
        raise ConfigError(f"--exclude {text}: nothing is left of {_names(hosts)}.")
    return left


def _first(hosts: Sequence[Host], choice: Choice) -> list[Host]:
    n_hosts, n_slots = choice.num_nodes, choice.num_gpus
    if n_hosts is not None and n_hosts > len(hosts):
        raise ConfigError(f"--num_nodes {n_hosts}: there {_are(len(hosts), 'host')}, {_names(hosts)}.")
    few = [host for host in hosts[:n_hosts] if n_slots and host.slots is not None and len(host.slots) < n_slots]
    if few and n_slots is not None:
        slots = few[0].slots or ()
        raise ConfigError(f"--num_gpus {n_slots}: {few[0].name} has {_count(len(slots), 'slot')}.")
    if n_slots is None:
        return list(hosts[:n_hosts])
    return [Host(host.name, (host.slots or tuple(range(n_slots)))[:n_slots]) for host in hosts[:n_hosts]]


def _parsed(hosts: Sequence[Host], text: str, option: str) -> dict[str, set[int | None]]:
    """The slots of each host that a filter names; None among them for all."""
    there = {host.name: host.slots for host in hosts}
    found: dict[str, set[int | None]] = {}
    for spec in text.split("@"):
        name, colon, slots = spec.partition(":")
        if name not in there:
            raise ConfigError(f"{option} {text}: there is no host {name!r} among {_names(hosts)}.")
        if not colon:
            found.setdefault(name, set()).add(None)
            continue
        if not re.fullmatch(r"\d{1,6}(,\d{1,6})*", slots):
            raise ConfigError(f"{option} {text}: {spec!r} must be NAME or NAME:SLOT,SLOT, such as node1:0,2.")
        numbers, all_slots = {int(slot) for slot in slots.split(",")}, there[name]
        if all_slots is not None and (strange := sorted(numbers.difference(all_slots))):
            raise ConfigError(f"{option} {text}: {name} has slots 0 to {len(all_slots) - 1}, not {strange[0]}.")
        found.setdefault(name, set()).update(numbers)
    return found


def _sorted(slots: set[int | None]) -> tuple[int, ...]:
    return tuple(sorted(slot for slot in slots if slot is not None))


def _names(hosts: Sequence[Host]) -> str:
    names = [host.name for host in hosts]
    return ", ".join(names if len(names) <= 8 else [*names[:7], f"{len(names) - 7} more"])


def _are(count: int, what: str) -> str:
    return f"{'is' if count == 1 else 'are'} {_count(count, what)}"


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"
