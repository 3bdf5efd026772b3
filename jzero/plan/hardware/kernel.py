"""What one kernel does: how much it multiplies, reads and writes, and how long that takes a GPU at least.

A kernel that multiplies takes as long as its products or its memory traffic, whichever is longer (the roofline model,
Williams et al. 2009); all else as long as its memory traffic. `jzero.plan.compiled.kernels` reads kernels from a
compiled program, `jzero.plan.estimate.traced` from a trace.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jzero.plan.hardware.figures import GpuFigures


@dataclass(frozen=True)
class Kernel:
    """One kernel or copy, per device.

    Attributes:
        flops: of matrix products and convolutions, by HLO dtype.
        n_bytes: read from and written to the device's memory.
        to_device: bytes read from host memory.
        to_host: bytes written there.
    """

    flops: Mapping[str, int] = field(default_factory=dict)
    n_bytes: int = 0
    to_device: int = 0
    to_host: int = 0

    def seconds(self, gpu: GpuFigures) -> float:
        """How long it takes at the GPU's rates.

        Example:
            >>> from jzero.plan.hardware.figures import gpu_figures
            >>> Kernel({"bf16": 312 * 10**9}, n_bytes=10**6).seconds(gpu_figures("a100-80g"))
            0.001
        """
        device = max(gpu.product_seconds(self.flops), self.n_bytes / gpu.memory_bandwidth)
        return max(device, max(self.to_device, self.to_host) / gpu.pcie_bandwidth, gpu.kernel_latency)


def share_seen(n_keys: int, is_causal: bool, window: int | None = None) -> float:
    """Which part of all pairs of a query and a key flash attention computes, for as many queries as keys.

    Args:
        n_keys: in a row.
        is_causal: whether a query sees no later key.
        window: how many keys up to itself a query sees at most; None for all.

    Example:
        >>> share_seen(4, is_causal=True), share_seen(4, is_causal=True, window=2), share_seen(4, is_causal=False)
        (0.625, 0.4375, 1.0)
    """
    if not is_causal:
        return 1.0
    seen = min(n_keys if window is None else window, n_keys)
    return (seen * n_keys - seen * (seen - 1) / 2) / n_keys**2
