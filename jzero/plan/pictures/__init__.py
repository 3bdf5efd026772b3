"""Pictures of a plan: figures for notebooks, drawn with matplotlib, and one HTML report that needs nothing.

Layouts draw themselves in a notebook, see `jzero.plan.layouts`.
"""

from jzero.plan.pictures.bars import memory_bars
from jzero.plan.pictures.memory import memory_over_time
from jzero.plan.pictures.report import report_html
from jzero.plan.pictures.spans import timeline_figure

__all__ = ["memory_bars", "memory_over_time", "report_html", "timeline_figure"]
