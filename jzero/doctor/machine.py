"""The facts of a machine that matter to training, gathered without judging them."""

import os
import platform
import re
import resource
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import jax

from jzero.base.version import VERSION
from jzero.errors import ConfigError
from jzero.launch import read_launch
from jzero.launch.local_devices import count_gpus
from jzero.offload.host_budget import free_memory

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
PLUGINS = ("jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt")


@dataclass(frozen=True)
class Machine:
    """What is to be known of a machine. Sizes in bytes.

    Attributes:
        python: the version of Python.
        versions: of jzero and of what is installed of `PACKAGES` and `PLUGINS`.
        environment: the environment variables.
        backend: JAX's default backend, "cpu" or "gpu"; where none starts, what JAX says of it.
        devices: what JAX calls each device of this process.
        driver: the version of NVIDIA's kernel driver; None where there is none.
        gpu_files: GPUs of which the system has a device file.
        cpus: cores that this process may use.
        free_memory: that this process can still take; None where the system does not say.
        shared_memory: size of /dev/shm; None where there is none.
        locked_memory: that a process may lock; None for any amount.
        open_files: that a process may have open.
        interfaces: network interfaces that are up, other than the loopback, with their speed in Mb/s; None for a speed
            that is unknown.
        fabric: InfiniBand and RoCE ports, with what their state and rate files say.
        addresses: what the host of the first process resolves to, where a launcher started several; None where none
            did, empty where nobody knows it.
    """

    python: str
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    backend: str
    devices: tuple[str, ...]
    driver: str | None
    gpu_files: int
    cpus: int
    free_memory: int | None
    shared_memory: int | None
    locked_memory: int | None
    open_files: int
    interfaces: Mapping[str, int | None]
    fabric: Mapping[str, tuple[str, str]]
    addresses: tuple[str, ...] | None


def this_machine() -> Machine:
    """Looks around. Starts JAX, and resolves the first process's host; connects to nothing.

    Example:
        >>> machine = this_machine()
        >>> machine.backend, len(machine.devices)
        ('cpu', 8)
    """
    environment = dict(os.environ)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a look must not take the GPU's memory
    backend, devices = _backend()
    return Machine(
        python=platform.python_version(),
        versions=_versions(),
        environment=environment,
        backend=backend,
        devices=devices,
        driver=_driver(Path("/proc/driver/nvidia/version")),
        gpu_files=count_gpus(),
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        free_memory=free_memory(),
        shared_memory=shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        interfaces=_interfaces(Path("/sys/class/net")),
        fabric=_fabric(Path("/sys/class/infiniband")),
        addresses=_resolved(_first_host(environment)),
    )


def _backend() -> tuple[str, tuple[str, ...]]:
    try:
        return jax.default_backend(), tuple(d.device_kind for d in jax.local_devices())
    except RuntimeError as error:
        return str(error).splitlines()[0], ()


def _versions() -> dict[str, str]:
    found = {"jzero": VERSION}
    for name in (*PACKAGES, *PLUGINS):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _driver(file: Path) -> str | None:
    found = re.search(r"\b(\d+\.\d+(\.\d+)?)\b", _text(file))
    return found[1] if found else None


def _limit(which: int) -> int | None:
    soft = resource.getrlimit(which)[0]
    return None if soft == resource.RLIM_INFINITY else soft


def _interfaces(folder: Path) -> dict[str, int | None]:
    found = {}
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if place.name != "lo" and _text(place / "operstate") in ("up", "unknown"):
            speed = _text(place / "speed")
            found[place.name] = int(speed) if speed.isdecimal() and int(speed) else None
    return found


def _fabric(folder: Path) -> dict[str, tuple[str, str]]:
    return {
        f"{port.parent.parent.name}/{port.name}": (_text(port / "state"), _text(port / "rate"))
        for port in sorted(folder.glob("*/ports/*"))
    }


def _text(file: Path) -> str:
    """A file's text; nothing for one that is not there or that the kernel does not answer for."""
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _first_host(environment: Mapping[str, str]) -> str | None:
    """Where the processes meet, if there are several and that can be read; what cannot is for the checks to say."""
    try:
        launch = read_launch(environment)
    except ConfigError:
        return None
    return None if launch is None else launch.host


def _resolved(name: str | None) -> tuple[str, ...] | None:
    if name is None:
        return None
    try:
        return tuple(sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)}))
    except OSError:
        return ()
