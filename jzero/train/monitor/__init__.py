"""Where a run's figures go: a file of JSON lines, the screen, and what the configuration's monitor sections ask for."""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.train.monitor.console import ConsoleView
    from jzero.train.monitor.events import event_writers
    from jzero.train.monitor.metrics import JsonLines, MetricWriter
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.train.monitor.console": ("ConsoleView",),
            "jzero.train.monitor.events": ("event_writers",),
            "jzero.train.monitor.metrics": ("JsonLines", "MetricWriter"),
        },
    )

__all__ = ["ConsoleView", "JsonLines", "MetricWriter", "event_writers"]
