"""Memory by part as one bar for each setting, with the memory that a GPU has usable as a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jzero.base.units import format_bytes
from jzero.plan.render.style import PART_COLOURS, chart, legend, new_figure, part_name, percent, setting_name, tag, text
from jzero.plan.search.planner import Plan
from jzero.plan.search.row import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROW, _TOP = 52, 24  # pixels


@dataclass(frozen=True)
class _Axis:
    """How far the bars reach, and whether the line of usable memory is on the picture or far beyond it."""

    end: float
    usable: int

    @property
    def shows_usable(self) -> bool:
        return self.usable <= self.end


def _axis(plan: Plan) -> _Axis:
    most, usable = max(max(row.closed_form_peak, row.peak) for row in plan.rows), plan.cluster.usable
    return _Axis(1.03 * (max(most, usable) if usable < 8 * most else most), usable)


def _verdict(row: Row) -> str:
    compiled = f", compiled {format_bytes(row.compiled.peak)}" if row.compiled else ""
    return f"{format_bytes(row.closed_form_peak)}{compiled}{'' if row.fits else ', does not fit'}"


def memory_bars_svg(plan: Plan) -> str:
    """The bars for a page: as wide as it is, with letters of the same size at any width.

    Args:
        plan: from `jzero.plan.plan`.

    Returns:
        An `<svg>` and its legend.
    """
    axis = _axis(plan)
    height = _TOP + _ROW * len(plan.rows)
    drawn = [element for i, row in enumerate(plan.rows) for element in _bar(plan, row, _TOP + i * _ROW, axis)]
    label, at, anchor = f"usable {format_bytes(axis.usable)}", percent(axis.usable / axis.end), "end"
    if axis.shows_usable:
        drawn.insert(0, tag("line", x1=at, x2=at, y1=18, y2=height, class_="limit"))
        anchor = "end" if axis.usable > axis.end / 2 else "start"
    else:
        label, at = f"{label}, far to the right", "100%"
    drawn.append(tag("text", text(label), x=at, y=13, text_anchor=anchor, class_="limit-label"))
    summary = "; ".join(f"{setting_name(row.setting, plan.base)}: {_verdict(row)}" for row in plan.rows)
    svg = chart("Memory of one GPU by part, for each setting", summary, drawn, height)
    return legend((part, part_name(part)) for part in PART_COLOURS) + svg


def _bar(plan: Plan, row: Row, top: int, axis: _Axis) -> Iterator[str]:
    """One row: its name, its figures, its parts side by side and a mark where the compiled program's peak is."""
    name, is_chosen = setting_name(row.setting, plan.base), row.setting == plan.recommendation.setting
    marked = "name chosen" if is_chosen else "name"
    yield tag("text", text(name + " \u2713" * is_chosen), x=0, y=top + 14, class_=marked)
    fits = "value" if row.fits else "value bad"
    yield tag("text", text(_verdict(row)), x="100%", y=top + 14, class_=fits, text_anchor="end")
    start = 0.0
    for part, n_bytes in row.bytes_by_part.items():
        if n_bytes:
            title = tag("title", text(f"{name}: {part_name(part)} {format_bytes(n_bytes)}"))
            x, width = percent(start / axis.end), percent(n_bytes / axis.end)
            yield tag("rect", title, x=x, y=top + 20, width=width, height=20, class_=f"part fill-{part}")
        start += n_bytes
    if row.compiled:
        peak = row.compiled.peak
        title = tag("title", text(f"{name}: {format_bytes(peak)} as compiled"))
        yield tag("rect", title, x=percent(peak / axis.end), y=top + 16, width=3, height=28, class_="mark")


def memory_bars(plan: Plan) -> "Figure":
    """The bars as a matplotlib figure; needs `pip install 'jzero[plot]'`.

    Args:
        plan: from `jzero.plan.plan`.

    Returns:
        The figure, which a notebook shows.
    """
    axis, rows = _axis(plan), plan.rows
    figure, axes = new_figure(1.2 + 0.42 * len(rows))
    unit = 1e9 if axis.end >= 1e9 else 1e6
    starts, ink = [0.0] * len(rows), axes.xaxis.label.get_color()
    for part, colour in PART_COLOURS.items():
        sizes = [row.bytes_by_part[part] / unit for row in rows]
        axes.barh(range(len(rows)), sizes, left=starts, color=colour.light, label=part_name(part), height=0.6)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    compiled = [(i, row.compiled.peak / unit) for i, row in enumerate(rows) if row.compiled]
    if compiled:
        where, peaks = zip(*compiled, strict=True)
        axes.scatter(peaks, where, marker="|", s=300, color=ink, label="compiled", zorder=3)
    if axis.shows_usable:
        axes.axvline(axis.usable / unit, color=ink, linestyle="--", label=f"usable: {format_bytes(axis.usable)}")
    axes.set_yticks(range(len(rows)), [setting_name(row.setting, plan.base) for row in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, axis.end / unit)
    axes.set_xlabel(f"{'GB' if unit == 1e9 else 'MB'} on one {plan.cluster.gpu}")
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
