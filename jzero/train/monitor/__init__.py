"""Where a run's figures go: a file of JSON lines, the screen, and what the configuration's monitor sections ask for."""

from jzero.train.monitor.console import ConsoleView
from jzero.train.monitor.events import event_writers
from jzero.train.monitor.metrics import JsonLines, MetricWriter

__all__ = ["ConsoleView", "JsonLines", "MetricWriter", "event_writers"]
