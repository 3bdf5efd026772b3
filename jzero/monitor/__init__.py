"""Where a run's figures go: a file of JSON lines and the screen."""

from jzero.monitor.console import ConsoleView
from jzero.monitor.metrics import JsonLines, MetricWriter

__all__ = ["ConsoleView", "JsonLines", "MetricWriter"]
