"""A step as a timeline: what computes, what travels between GPUs, and what comes and goes over PCIe."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from jzero.plan.compiled.owners import readable
from jzero.plan.compiled.timeline import Lane, Span, Timeline
from jzero.plan.render.style import SPAN_COLOURS, chart, legend, new_figure, percent, tag, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LANES: Mapping[Lane, str] = {"compute": "compute", "wire": "between GPUs", "pcie": "over PCIe"}
_ROW, _TOP = 44, 18  # pixels
_FINEST = 1 / 4000  # of the step: gaps shorter than this are not drawn
_LONGEST = 10
_WORDS = {"product": "matrix products", "kernel": "other kernels", "other": "other traffic"}

Pieces = Mapping[tuple[Lane, str], list[tuple[float, float]]]


def pieces(timeline: Timeline) -> Pieces:
    """When each lane is busy with what.

    Args:
        timeline: of one step.

    Returns:
        Lane and colour -> (start, end) in seconds, in order; runs with hardly a gap between them are one.
    """
    found: dict[tuple[Lane, str], list[tuple[float, float]]] = defaultdict(list)
    for span in timeline.spans:
        if span.seconds > 0:
            found[span.lane, _colour(span)] += [(start, start + span.seconds) for start in span.starts()]
    return {key: _merged(runs, timeline.seconds * _FINEST) for key, runs in found.items()}


def _shown(busy: Pieces) -> list[Lane]:
    """The lanes on which something runs, from top to bottom."""
    return [lane for lane in _LANES if any(key[0] == lane for key in busy)]


def _colour(span: Span) -> str:
    return span.kind if span.kind in SPAN_COLOURS else "other"


def _merged(runs: list[tuple[float, float]], gap: float) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(runs):
        if merged and start <= merged[-1][1] + gap:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def format_seconds(seconds: float) -> str:
    """A duration to three digits.

    Example:
        >>> format_seconds(0.01234), format_seconds(2.5e-5), format_seconds(75)
        ('12.3 ms', '25 µs', '75 s')
    """
    unit, scale = ("s", 1) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{seconds * scale:.3g} {unit}"


def timeline_svg(timeline: Timeline) -> str:
    """The picture for a page, with a list of what takes longest.

    Args:
        timeline: from `Program.timeline`.

    Returns:
        An `<svg>`, its legend and the list.
    """
    busy = pieces(timeline)
    lanes = _shown(busy)
    height = _TOP + _ROW * len(lanes) + 18
    drawn = [element for i, lane in enumerate(lanes) for element in _lane(lane, busy, _TOP + i * _ROW, timeline)]
    for i, anchor in enumerate(("start", "middle", "middle", "middle", "end")):
        label = text(format_seconds(timeline.seconds * i / 4) if i else "0")
        drawn.append(tag("text", label, x=percent(i / 4), y=height - 4, text_anchor=anchor, class_="tick"))
    svg = chart("Compute and traffic of one step over time", _summary(timeline), drawn, height)
    present = [colour for colour in SPAN_COLOURS if any(key[1] == colour for key in busy)]
    keys = legend((colour, _WORDS.get(colour, colour)) for colour in present)
    return tag("p", text(_summary(timeline))) + keys + tag("div", svg, class_="zoomable") + _longest_html(timeline)


def _lane(lane: Lane, busy: Pieces, top: int, timeline: Timeline) -> Iterator[str]:
    """One lane: its name, its track, and on it the runs of each colour."""
    yield tag("text", text(_LANES[lane]), x=0, y=top + 10, class_="tick")
    place = {"x": 0, "y": top + 14, "width": "100%", "height": 24}
    yield tag("rect", **place, class_="track")
    whole, paths = timeline.seconds, []
    for (which, colour), runs in busy.items():
        if which == lane:
            boxes = (_box(10_000 * start / whole, 10_000 * (end - start) / whole) for start, end in runs)
            title = tag("title", text(_WORDS.get(colour, colour)))
            paths.append(tag("path", title, d="".join(boxes), class_=f"fill-{colour}"))
    yield tag("svg", *paths, **place, viewBox="0 0 10000 1", preserveAspectRatio="none")


def _box(x: float, width: float) -> str:
    """The outline of a box that is at least one unit wide, so that it shows."""
    return f"M{x:.0f} 0h{max(width, 1):.0f}v1h-{max(width, 1):.0f}z"


def _summary(timeline: Timeline) -> str:
    share = lambda seconds: percent(round(seconds / timeline.seconds, 3))
    busy = [f"{_LANES[lane]} {share(timeline.busy(lane))}" for lane in _LANES if timeline.busy(lane)]
    waiting = [f"{_LANES[lane]} {share(n)}" for lane, n in timeline.waits.items() if n > 0]
    return (
        f"The step takes {format_seconds(timeline.seconds)} in this simulation. Busy: {', '.join(busy)}; "
        f"waiting: {', '.join(waiting) or 'never'}."
    )


def _longest_html(timeline: Timeline) -> str:
    totals: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0])
    for span in timeline.spans:
        total = totals[_colour(span), readable(span.op_name) or span.name]
        total[0] += span.seconds * span.runs
        total[1] += span.runs
    rows = [
        tag(
            "tr",
            tag("td", text(format_seconds(seconds)), class_="number"),
            tag("td", text(f"{runs:,}"), class_="number"),
            tag("td", tag("span", class_=f"swatch fill-{colour}"), text(name)),
        )
        for (colour, name), (seconds, runs) in sorted(totals.items(), key=lambda item: -item[1][0])[:_LONGEST]
    ]
    heads = (
        tag("th", text(word), scope="col", class_=kind)
        for word, kind in (("together", "number"), ("runs", "number"), ("what", ""))
    )
    return tag(
        "table",
        tag("caption", text("What takes longest")),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="holders",
    )


def timeline_figure(timeline: Timeline) -> "Figure":
    """The picture as a matplotlib figure; needs `pip install 'jzero[plot]'`.

    Args:
        timeline: from `Program.timeline`.

    Returns:
        The figure, which a notebook shows.
    """
    busy = pieces(timeline)
    lanes = _shown(busy)
    figure, axes = new_figure(1.4 + 0.5 * len(lanes))
    labelled = set()
    for (lane, colour), runs in busy.items():
        boxes = [(1e3 * start, 1e3 * (end - start)) for start, end in runs]
        label = None if colour in labelled else _WORDS.get(colour, colour)
        labelled.add(colour)
        axes.broken_barh(
            boxes, (lanes.index(lane) - 0.4, 0.8), color=SPAN_COLOURS[colour].light, linewidth=0, label=label
        )
    axes.set_yticks(range(len(lanes)), [_LANES[lane] for lane in lanes])
    axes.invert_yaxis()
    axes.set_xlim(0, 1e3 * timeline.seconds)
    axes.set_xlabel("milliseconds")
    figure.legend(loc="outside lower center", ncols=5, frameon=False)
    return figure
