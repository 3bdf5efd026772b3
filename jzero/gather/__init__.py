"""Gather and scatter at use: ZeRO for any function, by transforming its jaxpr."""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.gather.schedule.loop_pipeline import GradSums
    from jzero.gather.schedule.prefetch import Limits
    from jzero.gather.trace.interpreter import gather_at_use
    from jzero.gather.trace.scanned import first_uses, scanned_dims
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.gather.schedule.loop_pipeline": ("GradSums",),
            "jzero.gather.schedule.prefetch": ("Limits",),
            "jzero.gather.trace.interpreter": ("gather_at_use",),
            "jzero.gather.trace.scanned": ("first_uses", "scanned_dims"),
        },
    )

__all__ = ["GradSums", "Limits", "first_uses", "gather_at_use", "scanned_dims"]
