"""Model flops utilisation: what a run makes of the speed that its devices' data sheets promise."""

import functools
from typing import NamedTuple

from jzero.plan.hardware.figures import GPUS, gpu_figures


class Speed(NamedTuple):
    """How fast a step was.

    Attributes:
        tflops_per_device: model flops a second of one device, in 1e12.
        mfu: as a share of the device's peak; None where its data sheet is not known.
    """

    tflops_per_device: float
    mfu: float | None


@functools.cache
def peak_flops(device_kind: str, precision: str) -> float | None:
    """Dense matrix products a second at the peak, of a GPU that jzero knows.

    Args:
        device_kind: as JAX names it.
        precision: "fp32" (which is TF32 where there is that), "bf16" or "fp16".

    Returns:
        Operations a second, or None for another device.

    Example:
        >>> peak_flops("NVIDIA H100 80GB HBM3", "bf16"), peak_flops("cpu", "fp32")
        (989400000000000.0, None)
    """
    known = (gpu_figures(name) for name in GPUS)
    return next((gpu.peak_flops(precision) for gpu in known if gpu.device_kind == device_kind), None)


def speed(flops: int, seconds: float, n_devices: int, peak: float | None) -> Speed:
    """What model flops in so many seconds come to.

    Args:
        flops: of a step over all devices, see `jzero.observe.model_flops`.
        seconds: that it took.
        n_devices: that share them.
        peak: of one device, from `peak_flops`.

    Example:
        >>> speed(8 * 10**14, 2.0, 4, peak_flops("NVIDIA A100-SXM4-80GB", "bf16"))
        Speed(tflops_per_device=100.0, mfu=0.32...)
    """
    each = flops / seconds / n_devices
    return Speed(each / 1e12, None if peak is None else each / peak)
