"""Gather and scatter at use: ZeRO for any function, by transforming its jaxpr."""

from jzero.gather.interpreter import gather_at_use
from jzero.gather.lookahead import Limits
from jzero.gather.scanned import scanned_dims

__all__ = ["Limits", "gather_at_use", "scanned_dims"]
