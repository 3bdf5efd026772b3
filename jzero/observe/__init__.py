"""What a run does, in numbers that people compare: arithmetic, and how much of a device's speed it comes to.

Layout:
    arithmetic.py: the floating-point operations of a model's training step, counted in its loss.
    utilisation.py: model flops per second against what a device could do, MFU.
"""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.observe.arithmetic import ModelFlops, model_flops
    from jzero.observe.utilisation import peak_flops
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.observe.arithmetic": ("ModelFlops", "model_flops"),
            "jzero.observe.utilisation": ("peak_flops",),
        },
    )

__all__ = ["ModelFlops", "model_flops", "peak_flops"]
