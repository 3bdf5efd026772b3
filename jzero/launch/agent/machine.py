"""What an agent finds on its node: GPUs, the CPUs near each, an address that others can reach, a free port."""

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from jzero.launch.local_devices import count_gpus, names_of_gpus


def visible_gpus(environment: Mapping[str, str]) -> list[str] | None:
    """The names of the GPUs that this process may use, where its environment has a list of them.

    Example:
        >>> visible_gpus({"CUDA_VISIBLE_DEVICES": "4,5"}), visible_gpus({})
        (['4', '5'], None)
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    return None if text is None else names_of_gpus(text)


def n_gpus(environment: Mapping[str, str]) -> int:
    """How many GPUs there are for the processes of this node."""
    visible = visible_gpus(environment)
    return count_gpus() if visible is None else len(visible)


def address(environment: Mapping[str, str]) -> str:
    """An address of this node that other machines can reach: where a connection came in, or where one would go out."""
    came_in = environment.get("SSH_CONNECTION", "").split()
    candidates = came_in[2:3]
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):  # nothing is sent there
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))
            candidates.append(probe.getsockname()[0])
    with suppress(OSError):
        candidates += [str(entry[4][0]) for entry in socket.getaddrinfo(socket.gethostname(), None)]
    return next((each for each in candidates if not _local(each)), "127.0.0.1")


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def cpus_near(gpus: tuple[str, ...], proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> set[int]:
    """The CPUs of the NUMA nodes that some GPUs are on; none where that is not known.

    Args:
        gpus: their numbers, in the order of their places on the bus, or their UUIDs.
        proc: where the driver tells of them.
        sys: where the system tells of CPUs.
    """
    found: set[int] = set()
    buses, by_name = _buses(proc / "driver/nvidia/gpus")
    for gpu in gpus:
        bus = buses[int(gpu)] if gpu.isdecimal() and int(gpu) < len(buses) else by_name.get(gpu)
        if bus is None:
            return set()
        try:
            node = int((sys / "bus/pci/devices" / bus / "numa_node").read_text())
            if node < 0:
                return set()
            found |= numbers_of((sys / f"devices/system/node/node{node}/cpulist").read_text())
        except (OSError, ValueError):
            return set()
    return found & os.sched_getaffinity(0)


def numbers_of(text: str) -> set[int]:
    """The numbers of a list as Linux writes it.

    Example:
        >>> sorted(numbers_of("0-2,8,10-11"))
        [0, 1, 2, 8, 10, 11]
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        found |= set(range(int(low), int(high or low) + 1))
    return found


def _buses(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The places of the GPUs on the bus, in order, and those by UUID."""
    by_name: dict[str, str] = {}
    with suppress(OSError):
        for place in sorted(folder.iterdir()):
            uuid = re.search(r"GPU UUID:\s*(\S+)", (place / "information").read_text())
            by_name[uuid[1] if uuid else place.name] = place.name.lower()
    return sorted(by_name.values()), by_name


def _local(text: str) -> bool:
    return text.startswith(("127.", "::1", "fe80", "0.")) or not text
