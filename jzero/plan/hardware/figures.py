"""What is known of each GPU: its memory, its peak rates, and what XLA needs to compile for it.

One file each, with its sources, in `jzero/plan/hardware/gpus`; a user's own file has the same form. Rates are upper
bounds that no real program reaches; `jzero.plan.estimate.step_time` says how far below them programs stay.
"""

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from math import ceil, log2
from typing import Annotated, NamedTuple

import pydantic
from pydantic import BeforeValidator, ConfigDict, PositiveFloat, PositiveInt, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from jzero.base.files import check_depth, read_bytes, why
from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.plan.hardware.network import Network, read_network

_FILES = resources.files("jzero.plan.hardware") / "gpus"
GPUS: tuple[str, ...] = tuple(
    sorted(file.name.removesuffix(".toml") for file in _FILES.iterdir() if file.name.endswith(".toml"))
)
"""The GPUs that have a file."""

_HLO = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}
"""What HLO calls the precisions of a configuration."""

_MOST_BYTES = 2**18
"""How long a user's file may be."""

_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_STRICT)
class Target:
    """What XLA must know of a GPU to compile for it, beside its figures; sizes in bytes.

    Attributes:
        compute_capability: such as "9.0a"; the letter stands for instructions that only this architecture has.
        cores: streaming multiprocessors.
        fpus_per_core: fp32 lanes of each.
        clock_ghz: at most.
        threads_per_core: at most.
        shared_memory_per_core: in all.
        shared_memory_per_block: at most, when asked for.
        l2_cache: in all.
        nvlinks: links to other GPUs of the node.
        error_correction: whether the memory has it.
    """

    compute_capability: Annotated[str, pydantic.Field(pattern=r"^\d+\.\d[af]?$")]
    cores: PositiveInt
    fpus_per_core: PositiveInt
    clock_ghz: PositiveFloat
    threads_per_core: PositiveInt
    shared_memory_per_core: PositiveInt
    shared_memory_per_block: PositiveInt
    l2_cache: PositiveInt
    nvlinks: int = 0
    error_correction: bool = True


class Pace(NamedTuple):
    """What a program gets of the peak rates, as shares; and by how much latencies grow."""

    products: float
    memory: float
    wire: float
    pcie: float
    latency: float


@dataclass(frozen=True, config=_STRICT)
class GpuFigures:
    """One GPU. Rates are peaks, in one direction, in bytes or operations per second.

    Attributes:
        name: one of `jzero.plan.GPUS`, or the file it came from.
        device_kind: what JAX calls such a device.
        memory: bytes that CUDA shows, which are fewer than the data sheet's.
        flops: HLO dtype of the operands -> dense matrix products; f32 means TF32, JAX's default, where there is that.
        memory_bandwidth: from and to the GPU's own memory, together.
        nvlink_bandwidth: to other GPUs of its node: over NVLink, or over PCIe where there is none.
        pcie_bandwidth: from or to host memory.
        network: to other nodes.
        gpus_per_node: how many share a network that is quoted per node.
        target: what XLA needs to compile for it; None where it cannot.
        kernel_latency: seconds that even a kernel which does nothing takes.
        launch_latency: seconds before a collective sends anything.
        node_latency: seconds that a byte takes to another GPU of the node. The last two as NCCL reckons with.
    """

    name: str
    device_kind: str
    memory: PositiveInt
    flops: Mapping[str, PositiveFloat]
    memory_bandwidth: PositiveFloat
    nvlink_bandwidth: PositiveFloat
    pcie_bandwidth: PositiveFloat
    network: Annotated[Network, BeforeValidator(lambda x: read_network(x) if isinstance(x, str) else x)]
    gpus_per_node: PositiveInt = 8
    target: Target | None = None
    kernel_latency: float = 2e-6
    launch_latency: float = 10e-6
    node_latency: float = 2e-6

    @property
    def network_bandwidth(self) -> float:
        """Bytes per second that leave the node for each of its GPUs."""
        return self.network.per_gpu(self.gpus_per_node)

    def at(self, pace: Pace) -> "GpuFigures":
        """The same GPU with what programs get of its peak rates."""
        return replace(
            self,
            flops={dtype: pace.products * rate for dtype, rate in self.flops.items()},
            memory_bandwidth=pace.memory * self.memory_bandwidth,
            nvlink_bandwidth=pace.wire * self.nvlink_bandwidth,
            pcie_bandwidth=pace.pcie * self.pcie_bandwidth,
            network=replace(
                self.network,
                bandwidth=pace.wire * self.network.bandwidth,
                latency=pace.latency * self.network.latency,
            ),
            kernel_latency=pace.latency * self.kernel_latency,
            launch_latency=pace.latency * self.launch_latency,
            node_latency=pace.latency * self.node_latency,
        )

    def peak_flops(self, precision: str) -> float:
        """Dense matrix products a second at the peak, of a run in "fp32" (TF32 where there is that), "bf16" or "fp16".

        Example:
            >>> gpu_figures("v100-32g").peak_flops("fp16")
            125000000000000.0
        """
        return self.flops[_HLO[precision]]

    def product_seconds(self, flops: Mapping[str, int]) -> float:
        """Seconds that matrix products take at the peak rate.

        Args:
            flops: by HLO dtype, as `jzero.plan.compiled.flops.FlopCounter` counts them; dtypes without a rate
                count as f32.

        Returns:
            Seconds.

        Example:
            >>> gpu_figures("a100-80g").product_seconds({"bf16": 312 * 10**12, "f32": 156 * 10**12})
            2.0
        """
        return sum(count / self.flops.get(dtype, self.flops["f32"]) for dtype, count in flops.items())

    def bandwidth(self, kind: str, group_size: int, per_node: int) -> float:
        """Bytes per second that each device of a group sends in a collective: that of the slowest link on the way.

        A gather, a scatter or a sum passes the nodes in rings, one through the network card of every member, so that
        the members of a node share the traffic that leaves it. In all other kinds each device sends for itself.

        Args:
            kind: one of `jzero.plan.KINDS`.
            group_size: devices that take part together.
            per_node: how many of them share a node.

        Returns:
            The bandwidth.

        Example:
            >>> h100 = gpu_figures("h100-80g")
            >>> [h100.bandwidth("all-gather", 64, per_node) / 1e9 for per_node in (64, 8, 1)]
            [450.0, 400.0, 50.0]
        """
        if per_node >= group_size:
            return self.nvlink_bandwidth
        sharing = per_node if kind in ("all-gather", "reduce-scatter", "all-reduce") else 1
        return min(self.nvlink_bandwidth, sharing * self.network_bandwidth)

    def latency(self, kind: str, group_size: int, per_node: int) -> float:
        """Seconds of a collective that carries nothing: what it takes to start, and its hops one after another.

        A ring has as many hops as other members, one from node to node for each other node. A sum goes that way twice,
        or twice through a tree of nodes, whichever is shorter. All else goes straight to its end.

        Args:
            kind: see `bandwidth`.
            group_size: see `bandwidth`.
            per_node: see `bandwidth`.

        Example:
            >>> h100 = gpu_figures("h100-80g")
            >>> [round(h100.latency("all-gather", 64, per_node) * 1e6) for per_node in (64, 8)]
            [136, 150]
        """
        nodes = ceil(group_size / per_node)
        across = self.network.latency
        ring = (group_size - nodes) * self.node_latency + (nodes - 1) * across
        if kind == "all-reduce":
            tree = (min(group_size, per_node) - 1) * self.node_latency + ceil(log2(nodes)) * across
            return self.launch_latency + 2 * min(ring, tree)
        if kind in ("all-gather", "reduce-scatter"):
            return self.launch_latency + ring
        return self.launch_latency + (across if nodes > 1 else self.node_latency)

    def collective_seconds(self, kind: str, n_bytes: float, group_size: int, per_node: int) -> float:
        """Seconds of a collective: its latency, and the bytes that each device sends over the slowest link's bandwidth.

        Args:
            kind: see `bandwidth`.
            n_bytes: sent by each device, as `jzero.plan.Collective.wire_bytes`.
            group_size: see `bandwidth`.
            per_node: see `bandwidth`.
        """
        if group_size <= 1:
            return 0.0
        return self.latency(kind, group_size, per_node) + n_bytes / self.bandwidth(kind, group_size, per_node)


def gpu_figures(name: str) -> GpuFigures:
    """Looks a GPU up.

    Args:
        name: one of `jzero.plan.GPUS`, or what JAX calls the device, or the path of a file that ends in `.toml`. Such a
            file has the form of those in `jzero/plan/hardware/gpus`, or says `like = "h100-80g"` and what is different.

    Returns:
        What is known of it.

    Raises:
        ConfigError: an unknown GPU, or a file that does not say what it should.

    Example:
        >>> gpu_figures("NVIDIA H200").nvlink_bandwidth
        450000000000.0
    """
    if name.endswith(".toml"):
        return _read(name)
    found = next((figures for figures in map(_known, GPUS) if _is(figures, name)), None)
    if found is None:
        raise ConfigError(f"No GPU is named {name!r}; known are {', '.join(GPUS)}, or give the path of a .toml file.")
    return found


def gpu_memory(gpu: str) -> int:
    """Bytes of a GPU's memory that CUDA shows, which are fewer than the data sheet's.

    >>> gpu_memory("h100-80g")
    84942979072
    """
    return gpu_figures(gpu).memory


def is_known(name: str) -> bool:
    """Whether a GPU of this name has a file."""
    return any(_is(_known(gpu), name) for gpu in GPUS)


def _is(figures: GpuFigures, name: str) -> bool:
    # A real H200 calls itself "NVIDIA H200", shorter than its description here.
    return name in (figures.name, figures.device_kind) or (
        name.startswith("NVIDIA ") and figures.device_kind.startswith(name)
    )


@functools.cache
def _known(gpu: str) -> GpuFigures:
    return TypeAdapter(GpuFigures).validate_python({"name": gpu, **tomllib.loads((_FILES / f"{gpu}.toml").read_text())})


def _read(path: str) -> GpuFigures:
    """A user's file."""
    try:
        text = read_bytes(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        raise ConfigError(f"The GPU file {path} cannot be read: {why(error)}.") from None
    try:
        given: dict[str, Json] = tomllib.loads(text.decode())
        check_depth(given)
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, too deep, or a number of thousands of digits
        raise ConfigError(f"The GPU file {path} is not TOML: {why(error)}.") from None
    like = given.pop("like", None)
    if like is not None:
        if not isinstance(like, str) or like not in GPUS:
            raise ConfigError(f"{path}: `like` = {like!r} is no known GPU; known are {', '.join(GPUS)}.")
        known = tomllib.loads((_FILES / f"{like}.toml").read_text())
        tables = {
            key: {**known[key], **given[key]}
            for key in given
            if isinstance(given[key], dict) and isinstance(known.get(key), dict)
        }
        given = {**known, **given, **tables}
    try:
        figures = TypeAdapter(GpuFigures).validate_python({"name": path, **given})
    except ValidationError as error:
        wrong = [f"`{'.'.join(map(str, e['loc']))}`: {e['msg'][0].lower()}{e['msg'][1:]}" for e in error.errors()]
        raise ConfigError(f"{path}: {'; '.join(wrong)}.") from None
    if "f32" not in figures.flops:
        raise ConfigError(f"{path}: `flops.f32` is missing, the rate of products whose dtype has none of its own.")
    return replace(figures, name=path)
