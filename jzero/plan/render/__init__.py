"""Pictures of a plan: figures for notebooks, drawn with matplotlib, and one HTML report that needs nothing.

Layouts draw themselves in a notebook, see `jzero.explain.layouts`.
"""

from typing import TYPE_CHECKING

from jzero.base.lazy import lazy_names

if TYPE_CHECKING:
    from jzero.plan.render.bars import memory_bars
    from jzero.plan.render.memory import memory_over_time
    from jzero.plan.render.report import report_html
    from jzero.plan.render.spans import timeline_figure
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "jzero.plan.render.bars": ("memory_bars",),
            "jzero.plan.render.memory": ("memory_over_time",),
            "jzero.plan.render.report": ("report_html",),
            "jzero.plan.render.spans": ("timeline_figure",),
        },
    )

__all__ = ["memory_bars", "memory_over_time", "report_html", "timeline_figure"]
