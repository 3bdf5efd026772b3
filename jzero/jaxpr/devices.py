"""The device that a program is traced for, where JAX would ask the machine at hand.

A program for eight H100s may be traced on a laptop. JAX then looks for a local GPU to decide whether cuDNN's attention
takes heads of 256, and for a local cuDNN to know its version; both are answered for the program's own devices here.
"""

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import jax
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from jax.sharding import AbstractDevice, AbstractMesh, Mesh

ASSUMED_CUDNN = 91002
"""The version of cuDNN that a program is traced for where none is installed, as cuDNN numbers it: 9.10.2."""

_ABSTRACT = "compute capability "
"""What the kind of an abstract GPU begins with; the kind is what JAX's caches tell devices apart by."""


class _Device(Protocol):
    """What is asked of a `jax.Device`, which is no type that annotations take."""

    @property
    def platform(self) -> str: ...


class Target(NamedTuple):
    """What a program is traced for.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        capability: a GPU's compute capability, such as (9, 0); None where it is not known, and for other devices.
    """

    platform: str
    capability: tuple[int, int] | None = None


SHAPES_ALONE = Target("gpu", (9, 0))
"""Where a model is traced for the shapes of its parameters and nothing will run: any kernel may be called."""

COUNTING = Target("nothing", (9, 0))
"""Where a model is traced for its arithmetic to be counted: what is cut into blocks for memory's sake stays in one."""

_COUNTING = AbstractDevice(device_kind=COUNTING.platform, num_cores=None, platform="cpu")

_TARGET: contextvars.ContextVar[Target | None] = contextvars.ContextVar("target", default=None)


def target() -> Target:
    """What the program that is being traced is for; outside of `traced_for` JAX's default device."""
    given = _TARGET.get()
    return _of_device(jax.local_devices()[0]) if given is None else given


def target_of(mesh: Mesh | AbstractMesh) -> Target:
    """What a mesh's devices are; one without devices stands for GPUs.

    >>> target_of(Mesh(jax.devices()[:1], "x")).platform
    'cpu'
    >>> target_of(AbstractMesh((8,), ("x",), abstract_device=abstract_gpu("8.0")))
    Target(platform='gpu', capability=(8, 0))
    """
    if not isinstance(mesh, AbstractMesh):
        return _of_device(mesh.devices.flat[0])
    kind = "" if mesh.abstract_device is None else mesh.abstract_device.device_kind
    if kind == COUNTING.platform:
        return COUNTING
    capability = kind.removeprefix(_ABSTRACT)
    return Target("gpu", _numbers(capability) if "." in capability else None)


def abstract_gpu(capability: str | None) -> AbstractDevice:
    """A GPU that is only estimated, as the device of a `jax.sharding.AbstractMesh`.

    Args:
        capability: its compute capability, such as "9.0"; None where no kernels are compiled for it.
    """
    return AbstractDevice(device_kind=f"{_ABSTRACT}{capability}", num_cores=None, platform="gpu")


def counting(mesh: Mesh | AbstractMesh) -> AbstractMesh:
    """A mesh like another one, over which programs are traced for their arithmetic alone; see `COUNTING`."""
    return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=mesh.axis_types, abstract_device=_COUNTING)


def cudnn_is_there() -> bool:
    """Whether a program for GPUs may call cuDNN: it is installed, or the GPUs are not here.

    A program is compiled for absent GPUs without any of NVIDIA's libraries.
    """
    return _cudnn_is_installed() or _gpus_are_absent()


def _gpus_are_absent() -> bool:
    return jax.default_backend() != "gpu"


@functools.cache
def _cudnn_is_installed() -> bool:
    try:
        return cudnn.check_cudnn_version() > 0
    except RuntimeError:  # "cuDNN not found.", or "not detected" where nothing of CUDA is there
        return False


@contextlib.contextmanager
def traced_for(devices: Target) -> Iterator[None]:
    """What is traced inside is for these devices.

    JAX's caches of traced functions know the kind of the devices from the mesh, so that what was traced for other
    devices is not taken.
    """
    token = _TARGET.set(devices)
    try:
        with _cudnn_of(devices) if devices.platform in ("gpu", COUNTING.platform) else contextlib.nullcontext():
            yield
    finally:
        _TARGET.reset(token)


@contextlib.contextmanager
def _cudnn_of(devices: Target) -> Iterator[None]:
    """JAX's questions about the GPU and its cuDNN, answered for `devices`."""
    names = ("check_compute_capability", "is_cuda_compute_capability_equal", "check_cudnn_version")
    before = {name: getattr(cudnn, name) for name in names}
    if devices.capability is not None:
        capability = devices.capability
        cudnn.check_compute_capability = lambda least: capability >= _numbers(least)
        cudnn.is_cuda_compute_capability_equal = lambda other: capability == _numbers(other)
    if _gpus_are_absent() and not _cudnn_is_installed():
        cudnn.check_cudnn_version = lambda: ASSUMED_CUDNN
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(cudnn, name, function)


def _of_device(device: _Device) -> Target:
    platform = "gpu" if device.platform in ("gpu", "cuda") else device.platform
    capability = getattr(device, "compute_capability", None)
    return Target(platform, None if capability is None else _numbers(capability))


def _numbers(capability: str) -> tuple[int, int]:
    major, minor = capability.split(".")
    return int(major), int(minor)
