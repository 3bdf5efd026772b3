"""Where a run's figures go: a file of JSON lines, the screen, and what the configuration's monitor sections ask for."""

from jzero.monitor.console import ConsoleView
from jzero.monitor.events import event_writers
from jzero.monitor.metrics import JsonLines, MetricWriter

__all__ = ["ConsoleView", "JsonLines", "MetricWriter", "event_writers"]
