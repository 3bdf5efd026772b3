"""Gather and scatter at use: ZeRO for any function, by transforming its jaxpr."""

from jzero.gather.schedule.prefetch import Limits
from jzero.gather.trace.interpreter import gather_at_use
from jzero.gather.trace.scanned import scanned_dims

__all__ = ["Limits", "gather_at_use", "scanned_dims"]
