"""What is wrong with a machine: pure functions of its facts."""

from collections.abc import Iterator

from jzero.base.units import format_bytes
from jzero.doctor.finding import Finding
from jzero.doctor.machine import Machine
from jzero.doctor.variables import VARIABLES
from jzero.errors import ConfigError
from jzero.launch import read_launch
from jzero.offload.host_budget import DEFAULT_POOL_GB, POOL_LIMIT
from jzero.plan.hardware.cluster import USABLE

_MIN_DRIVER = {"cuda12": 525, "cuda13": 580}  # NVIDIA's table of the drivers that a CUDA major version needs
_MIN_SHARED = 1 << 30
_MIN_FILES = 4096
_MEM_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_SIMULATED = "xla_force_host_platform_device_count"


def examine(machine: Machine) -> list[Finding]:
    """Judges a machine.

    Args:
        machine: from `this_machine`.

    Returns:
        What there is, topic by topic, and what is wrong with it.

    Example:
        >>> from dataclasses import replace
        >>> from jzero.doctor import this_machine
        >>> old = replace(this_machine(), versions={"jax": "0.10.2", "jaxlib": "0.10.1"})
        >>> next(f.advice for f in examine(old) if f.level == "wrong")
        'jax and jaxlib belong together; pip install jax==0.10.2 jaxlib==0.10.2.'
    """
    return [*_versions(machine), *_devices(machine), *_memory(machine), *_environment(machine), *_network(machine)]


def _versions(machine: Machine) -> Iterator[Finding]:
    versions = machine.versions
    yield Finding("versions", f"Python {machine.python}")
    for name, version in versions.items():
        yield Finding("versions", f"{name} {version}")
    jax, jaxlib = versions.get("jax"), versions.get("jaxlib")
    if jax and jaxlib and jax != jaxlib:
        advice = f"jax and jaxlib belong together; pip install jax=={jax} jaxlib=={jax}."
        yield Finding("versions", f"jax {jax} beside jaxlib {jaxlib}", "wrong", advice)
    for name, version in versions.items():
        if "cuda" in name and version != jaxlib:
            advice = f"The plugin must have jaxlib's version, or JAX does not load it; pip install {name}=={jaxlib}."
            yield Finding("versions", f"{name} {version} beside jaxlib {jaxlib}", "wrong", advice)


def _devices(machine: Machine) -> Iterator[Finding]:
    count = len(machine.devices)
    kinds = ", ".join(sorted(set(machine.devices)))
    plugins = [kind for kind in _MIN_DRIVER if any(kind in name for name in machine.versions)]
    has_gpus = machine.gpu_files > 0
    if not count:
        advice = "JAX finds no device to run on; look at JAX_PLATFORMS and CUDA_VISIBLE_DEVICES, and at the driver."
        yield Finding("devices", machine.backend, "wrong", advice)
        return
    yield Finding("devices", f"{count} of JAX's backend {machine.backend}: {kinds}; {machine.cpus} CPU cores")
    if machine.driver:
        yield Finding("devices", f"NVIDIA driver {machine.driver}, {machine.gpu_files} GPUs in /dev")
        for kind in plugins:
            if int(machine.driver.split(".")[0]) < _MIN_DRIVER[kind]:
                advice = f"JAX's {kind} plugin needs driver {_MIN_DRIVER[kind]} or newer."
                yield Finding("devices", f"driver {machine.driver}", "wrong", advice)
    if has_gpus and machine.backend == "cpu":
        chosen = machine.environment.get("JAX_PLATFORMS", "")
        advice = (
            f"JAX_PLATFORMS={chosen} keeps JAX from them; unset it."
            if chosen and "cuda" not in chosen and "gpu" not in chosen
            else "Install JAX with NVIDIA's libraries: pip install 'jax[cuda12]'. The extra jzero[plan] compiles for "
            "GPUs, but does not bring what running on them needs."
        )
        yield Finding("devices", f"{machine.gpu_files} GPUs that JAX does not use", "wrong", advice)
    if machine.backend == "gpu" and count < machine.gpu_files:
        visible = machine.environment.get("CUDA_VISIBLE_DEVICES")
        hidden = f"CUDA_VISIBLE_DEVICES={visible} hides the others"
        why = f"{hidden if visible else 'this process was given these'}; that is right where processes share the node."
        yield Finding("devices", f"{count} of {machine.gpu_files} GPUs are visible", "note", why)
    if has_gpus and _SIMULATED in machine.environment.get("XLA_FLAGS", ""):
        advice = "It simulates CPU devices, for tests; on a machine with GPUs, remove it."
        yield Finding("devices", f"XLA_FLAGS has {_SIMULATED}", "note", advice)
    if not has_gpus and plugins:
        yield Finding("devices", f"{', '.join(plugins)} plugin without a GPU: jzero plan compiles, nothing runs on it")
    if not plugins:
        advice = "jzero plan shows its closed form only; pip install 'jzero[plan]' lets it compile, without a GPU too."
        yield Finding("devices", "no CUDA plugin", "note", advice)


def _memory(machine: Machine) -> Iterator[Finding]:
    on_gpu = machine.backend == "gpu"
    if machine.free_memory is not None:
        yield Finding("memory", f"{format_bytes(machine.free_memory)} of host memory free")
    if machine.shared_memory is not None:
        small = on_gpu and len(machine.devices) > 1 and machine.shared_memory < _MIN_SHARED
        advice = (
            "NCCL passes messages between the GPUs of a node through it, and fails or falls back to sockets; start the "
            "container with --shm-size=16g or --ipc=host."
        )
        what = f"{format_bytes(machine.shared_memory)} in /dev/shm"
        yield Finding("memory", what, "wrong", advice) if small else Finding("memory", what)
    if on_gpu:
        yield _fraction(machine.environment.get(_MEM_FRACTION))
        limit = machine.environment.get(POOL_LIMIT)
        advice = f"More than {DEFAULT_POOL_GB} GB of offloaded state for each process need {POOL_LIMIT}."
        what = f"JAX pins at most {limit or DEFAULT_POOL_GB} GB of host memory"
        yield Finding("memory", what) if limit else Finding("memory", what, "note", advice)
    if machine.open_files < _MIN_FILES:
        advice = f"Checkpoints and data keep many files open; raise it with ulimit -n {_MIN_FILES}."
        yield Finding("memory", f"at most {machine.open_files} open files", "note", advice)


def _fraction(text: str | None) -> Finding:
    """JAX takes 75 % of a GPU's memory unless told otherwise; a plan reckons with more."""
    try:
        share = 0.75 if text is None else float(text)
    except ValueError:
        return Finding("memory", f"{_MEM_FRACTION}={text}", "wrong", "It must be a number between 0 and 1.")
    what = f"JAX takes {share:.0%} of each GPU's memory"
    if share >= USABLE:
        return Finding("memory", what)
    advice = f"jzero plan reckons with {USABLE:.0%}: set {_MEM_FRACTION}={USABLE} before the program starts."
    return Finding("memory", what, "wrong", advice)


def _environment(machine: Machine) -> Iterator[Finding]:
    on_gpu = machine.backend == "gpu" or machine.gpu_files > 0
    for variable in VARIABLES:
        value = machine.environment.get(variable.name, "")
        if value and (on_gpu or not variable.on_gpu) and variable.matters(value):
            yield Finding("environment", f"{variable.name}={value}", variable.level, variable.advice)


def _network(machine: Machine) -> Iterator[Finding]:
    for name, speed in machine.interfaces.items():
        yield Finding("network", f"{name}, {f'{speed / 1000:g} Gb/s' if speed else 'speed unknown'}")
    yield from _fabric(machine)
    wanted = machine.environment.get("NCCL_SOCKET_IFNAME")
    if wanted and not any(_is_chosen(name, wanted) for name in machine.interfaces):
        there = ", ".join(machine.interfaces) or "none"
        advice = f"No interface that is up goes by it, and NCCL fails to start; those that are up: {there}."
        yield Finding("network", f"NCCL_SOCKET_IFNAME={wanted}", "wrong", advice)
    yield from _launch(machine)


def _launch(machine: Machine) -> Iterator[Finding]:
    try:
        launch = read_launch(machine.environment)
    except ConfigError as error:
        yield Finding("network", "the launcher's variables", "wrong", str(error))
        return
    if launch is None:
        return
    place = f"process {launch.rank} of {launch.n_processes}, which meet at {launch.coordinator}"
    yield Finding("network", f"{place}, as {launch.launcher} says")
    addresses, what = machine.addresses, f"the first process's host {launch.host}"
    if addresses == ():
        advice = "This machine knows no such name; give an address that all machines reach."
        yield Finding("network", what, "wrong", advice)
    elif addresses and launch.n_local != launch.n_processes and all(map(_is_loopback, addresses)):
        advice = "To every machine that is itself; give the address of the first one, unless all processes are here."
        yield Finding("network", what, "wrong" if launch.n_local else "note", advice)


def _fabric(machine: Machine) -> Iterator[Finding]:
    active = {port: rate for port, (state, rate) in machine.fabric.items() if "ACTIVE" in state}
    for port, (state, rate) in machine.fabric.items():
        if port in active:
            yield Finding("network", f"{port}, {rate}")
        else:
            advice = "NCCL leaves it out, so that the others carry its share; see to the cable or the subnet manager."
            yield Finding("network", f"{port}, {state or 'state unknown'}", "note", advice)
    if not active:
        return
    if disabled := machine.environment.get("NCCL_IB_DISABLE", "0").strip() not in ("", "0"):
        advice = "NCCL then sends over TCP, several times slower than these ports; unset it."
        yield Finding("network", "NCCL_IB_DISABLE=1", "wrong", advice)
    if machine.locked_memory is not None and not disabled:
        advice = "Network cards read memory that is locked; start with ulimit -l unlimited (--ulimit memlock=-1)."
        yield Finding("network", f"at most {format_bytes(machine.locked_memory)} locked memory", "wrong", advice)


def _is_chosen(interface: str, wanted: str) -> bool:
    """NCCL's rule: prefixes with commas between them, `=` for whole names, and a leading `^` for all others."""
    names = wanted.lstrip("^=").split(",")
    exact = wanted.lstrip("^").startswith("=")
    hit = any(interface == name if exact else interface.startswith(name) for name in names)
    return hit != wanted.startswith("^")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"
