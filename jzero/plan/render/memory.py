"""Memory over the schedule of a step: what is alive when, and whose it is at the fullest moment."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from jzero.base.units import format_bytes
from jzero.plan.memory_use import Holder, MemoryUse
from jzero.plan.render.style import PART_COLOURS, chart, legend, new_figure, part_name, percent, tag, text, ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_POINTS = 600  # more than a screen can tell apart
_HEIGHT, _TOP, _BOTTOM = 300, 26, 36  # pixels
_AREA = _HEIGHT - _TOP - _BOTTOM
_HOLDERS = 10


def _moments(use: MemoryUse) -> np.ndarray:
    """The moments to draw: of those that fall on one point of the picture, the fullest."""
    total = use.total
    bounds = np.unique(np.linspace(0, len(total), min(_POINTS, len(total)) + 1).astype(int))
    return np.array([a + total[a:b].argmax() for a, b in itertools.pairwise(bounds)])


def memory_over_time_svg(use: MemoryUse, usable: int) -> str:
    """The picture for a page, with a list of what fills memory at the peak.

    Args:
        use: `Program.memory_use`.
        usable: bytes that a GPU has, drawn as a line if it is near the peak.

    Returns:
        An `<svg>`, its legend and the list.
    """
    axis = _Axis(1.08 * (usable if use.peak < usable < 2 * use.peak else use.peak))
    svg = chart(
        "Memory that is alive at each moment of a step",
        f"{_peak_label(use)}; " + ", ".join(f"{p} from {percent(s / len(use.total))} on" for p, s in use.phases),
        [_areas(use, axis), *_grid(axis), *_phase_marks(use), *_limit(usable, axis), *_peak_mark(use)],
        _HEIGHT,
    )
    keys = legend((part, part_name(part)) for part in PART_COLOURS if use.n_bytes[part].any())
    labels = (
        tag("text", text(format_bytes(n)), x=52, y=f"{axis.y(n) + 4:.1f}", text_anchor="end", class_="tick")
        for n in ticks(axis.top)
    )
    scale = tag("svg", *labels, width=58, height=_HEIGHT, aria_hidden="true", class_="chart")
    listed = _holders_html(use) if use.holders else ""
    return keys + tag("div", scale, tag("div", svg, class_="zoomable"), class_="plot") + listed


class _Axis(NamedTuple):
    """Bytes from the bottom of the picture to its top."""

    top: float

    def y(self, n_bytes: float) -> float:
        """Where so many bytes are, in pixels from above."""
        return _TOP + _AREA * (1 - n_bytes / self.top)


def _areas(use: MemoryUse, axis: _Axis) -> str:
    """The parts on top of each other, in a picture of its own that is stretched to its place."""
    moments, end = _moments(use), len(use.total)
    xs = np.append(moments, end) * 1000 / end
    xs[0] = 0
    below, drawn = np.zeros(len(moments)), []
    for part in PART_COLOURS:
        above = below + use.n_bytes[part][moments]
        if use.n_bytes[part].any():
            path = "M" + "L".join([*_steps(xs, above, axis.top), *_steps(xs, below, axis.top)[::-1]]) + "Z"
            drawn.append(tag("path", tag("title", text(part_name(part))), d=path, class_=f"fill-{part}"))
        below = above
    return tag(
        "svg", *drawn, x=0, y=_TOP, width="100%", height=_AREA, viewBox="0 0 1000 1000", preserveAspectRatio="none"
    )


def _grid(axis: _Axis) -> Iterator[str]:
    for n in ticks(axis.top):
        yield tag("line", x1=0, x2="100%", y1=f"{axis.y(n):.1f}", y2=f"{axis.y(n):.1f}", class_="grid")


def _phase_marks(use: MemoryUse) -> Iterator[str]:
    for i, phase in enumerate(use.phases):
        at = percent(phase.start / len(use.total))
        yield tag("line", x1=at, x2=at, y1=_TOP, y2=_HEIGHT - _BOTTOM + 6, class_="grid")
        y_text = _HEIGHT - _BOTTOM + 14 + 13 * (i % 2)  # neighbours may be close
        yield tag("text", text(phase.name), x=at, y=y_text, dx=3, class_="tick")


def _limit(usable: int, axis: _Axis) -> Iterator[str]:
    """The line of usable memory, if it is on the picture."""
    if usable < axis.top:
        y = axis.y(usable)
        yield tag("line", x1=0, x2="100%", y1=f"{y:.1f}", y2=f"{y:.1f}", class_="limit")
        label = text(f"usable {format_bytes(usable)}")
        yield tag("text", label, x="100%", y=f"{y - 4:.1f}", text_anchor="end", class_="limit-label")


def _peak_mark(use: MemoryUse) -> Iterator[str]:
    share = use.peak_at / len(use.total)
    yield tag("line", x1=percent(share), x2=percent(share), y1=_TOP - 6, y2=_HEIGHT - _BOTTOM, class_="peak")
    anchor = "start" if share < 0.2 else "end" if share > 0.8 else "middle"
    yield tag("text", text(_peak_label(use)), x=percent(share), y=14, text_anchor=anchor, class_="name chosen")


def _peak_label(use: MemoryUse) -> str:
    return f"peak {format_bytes(use.peak)}"


def _steps(xs: np.ndarray, heights: np.ndarray, top: float) -> list[str]:
    """The corners of stairs; where a height repeats there is no corner."""
    corners, before = [], None
    for left, right, height in zip(xs[:-1], xs[1:], 1000 * (1 - heights / top), strict=True):
        if before is not None and abs(height - before) < 0.05:
            corners[-1] = f"{right:.1f} {before:.1f}"
            continue
        corners += [f"{left:.1f} {height:.1f}", f"{right:.1f} {height:.1f}"]
        before = height
    return corners


def _holders_html(use: MemoryUse) -> str:
    rows = [
        tag(
            "tr",
            tag("td", text(format_bytes(holder.n_bytes)), class_="number"),
            tag("td", text(percent(round(holder.n_bytes / use.peak, 3))), class_="number"),
            tag("td", tag("span", class_=f"swatch fill-{holder.part}"), text(describe(holder))),
        )
        for holder in use.holders[:_HOLDERS]
    ]
    heads = (
        tag("th", text(word), scope="col", class_=kind)
        for word, kind in (("bytes", "number"), ("of peak", "number"), ("what", ""))
    )
    return tag(
        "table",
        tag("caption", text("What fills memory at the peak")),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="holders",
    )


def describe(holder: Holder) -> str:
    """What fills memory, in one line.

    Example:
        >>> describe(Holder("activations", "dot_general", "bf16[4,64]", 3, 1536))
        'activations: 3 x bf16[4,64], dot_general'
    """
    if not holder.shape:
        return f"{part_name(holder.part)}: {holder.n_arrays} arrays that enter the step"
    name = f", {holder.name}" if holder.name else ""
    return f"{part_name(holder.part)}: {holder.n_arrays} x {holder.shape}{name}"


def memory_over_time(use: MemoryUse) -> "Figure":
    """The picture as a matplotlib figure; needs `pip install 'jzero[plot]'`.

    Args:
        use: `Program.memory_use`, of a program from `jzero.plan.compile_step(..., memory_use=True)`.

    Returns:
        The figure, which a notebook shows.
    """
    moments = _moments(use)
    unit, name = (1e9, "GB") if use.peak >= 1e9 else (1e6, "MB")
    figure, axes = new_figure(4.5)
    parts = [part for part in PART_COLOURS if use.n_bytes[part].any()]
    axes.stackplot(
        moments,
        [use.n_bytes[part][moments] / unit for part in parts],
        labels=[part_name(part) for part in parts],
        colors=[PART_COLOURS[part].light for part in parts],
        step="post",
    )
    largest = "\n".join(f"{format_bytes(h.n_bytes)} {describe(h)}" for h in use.holders[:4])
    axes.annotate(
        f"peak {format_bytes(use.peak)}\n{largest}",
        (use.peak_at, use.peak / unit),
        xytext=(0.98, 0.97),
        textcoords="axes fraction",
        ha="right",
        va="top",
        fontsize=8,
        arrowprops={"arrowstyle": "->"},
    )
    axes.set_xticks([phase.start for phase in use.phases], [phase.name for phase in use.phases], ha="left")
    axes.set_xlim(0, len(use.total) - 1)
    axes.set_ylim(0, 1.45 * use.peak / unit)
    axes.set_ylabel(f"{name} on one GPU")
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    return figure
