"""How fast each known GPU is: products, memory and links, from public data sheets.

These are upper bounds that no real program reaches; they serve to compare times of one program with each other.
Copy one with `dataclasses.replace` to plan for another network.
"""

import dataclasses
from collections.abc import Mapping

from jzero.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class GpuFigures:
    """Peak rates of one GPU.

    Attributes:
        name: one of `jzero.plan.GPUS`.
        device_kind: what JAX calls such a device.
        flops: HLO dtype of the operands -> dense matrix-product flops per second; f32 means TF32, JAX's default.
        memory_bandwidth: bytes per second from and to the GPU's own memory.
        nvlink_bandwidth: bytes per second that the GPU sends to others of its node, in one direction.
        network_bandwidth: bytes per second that leave the node for each of its GPUs, in one direction.
    """

    name: str
    device_kind: str
    flops: Mapping[str, float]
    memory_bandwidth: float
    nvlink_bandwidth: float
    network_bandwidth: float

    def product_seconds(self, flops: Mapping[str, int]) -> float:
        """Seconds that matrix products take at the peak rate.

        Args:
            flops: by HLO dtype, as `jzero.plan.flops.FlopCounter` counts them; dtypes without a rate count as f32.

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


# Products: NVIDIA A100 data sheet and "H100 Tensor Core GPU Architecture" (table of peak rates), both without sparsity;
# an H200 has the cores of an H100 SXM5. Memory: data sheets of A100 (SXM4, 40 and 80 GB), H100 SXM5 and H200. NVLink:
# half of the 600 (12 links of generation 3) or 900 GB/s (18 of generation 4) that both directions have together.
# A GeForce RTX 4090 (NVIDIA's Ada architecture paper; products summed in fp32) has 16 lanes of PCIe 4.0 instead.
# Network: a DGX A100 has one 200 Gb/s, a DGX H100 or H200 one 400 Gb/s card per GPU; a 4090 is given one of 100 Gb/s.
_AMPERE = {"bf16": 312e12, "f16": 312e12, "f32": 156e12, "f64": 19.5e12}
_HOPPER = {"bf16": 989.4e12, "f16": 989.4e12, "f32": 494.7e12, "f64": 66.9e12}
_ADA = {"bf16": 165.2e12, "f16": 165.2e12, "f32": 82.6e12, "f64": 1.29e12}
_FIGURES = {
    figures.name: figures
    for figures in (
        GpuFigures("a100-40g", "NVIDIA A100-SXM4-40GB", _AMPERE, 1.555e12, 300e9, 25e9),
        GpuFigures("a100-80g", "NVIDIA A100-SXM4-80GB", _AMPERE, 2.039e12, 300e9, 25e9),
        GpuFigures("h100-80g", "NVIDIA H100 80GB HBM3", _HOPPER, 3.35e12, 450e9, 50e9),
        GpuFigures("h200", "NVIDIA H200 141GB HBM3e", _HOPPER, 4.8e12, 450e9, 50e9),
        GpuFigures("rtx4090-24g", "NVIDIA GeForce RTX 4090", _ADA, 1.008e12, 32e9, 12.5e9),
    )
}


def gpu_figures(name: str) -> GpuFigures:
    """Looks the figures of a GPU up.

    Args:
        name: one of `jzero.plan.GPUS`, or what JAX calls the device.

    Returns:
        Its peak rates.

    Raises:
        ConfigError: for a GPU without figures.

    Example:
        >>> gpu_figures("NVIDIA H200").nvlink_bandwidth
        450000000000.0
    """
    figures = next((f for f in _FIGURES.values() if _is(f, name)), None)
    if figures is None:
        raise ConfigError(f"No figures are known of a device named {name!r}; known are {', '.join(_FIGURES)}.")
    return figures


def is_known(name: str) -> bool:
    """Whether there are figures of a GPU of this name."""
    return any(_is(figures, name) for figures in _FIGURES.values())


def _is(figures: GpuFigures, name: str) -> bool:
    # A real H200 calls itself "NVIDIA H200", shorter than its description here.
    return name == figures.name or (name.startswith("NVIDIA ") and figures.device_kind.startswith(name))
