"""What the pictures draw, against the numbers they are drawn from."""

import itertools
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jzero.plan.compiled.timeline import Loop, Span, Timeline
from jzero.plan.render import memory_bars, memory_over_time, timeline_figure
from jzero.plan.render.bars import memory_bars_svg
from jzero.plan.render.memory import memory_over_time_svg
from jzero.plan.render.spans import pieces, timeline_svg
from jzero.plan.render.style import PART_COLOURS, SPAN_COLOURS, ticks

LAYERS = Loop("layers", start=0.1, seconds=0.2, rounds=4)
TIMELINE = Timeline(
    (
        Span("compute", "kernel", "embed", "", 0.0, 0.1),
        Span("compute", "product", "dot.1", "jit(step)/dot_general", 0.1, 0.1, (LAYERS,)),
        Span("wire", "all-gather", "all-gather.1", "", 0.15, 0.05, (LAYERS,)),
        Span("pcie", "to host", "copy.1", "", 0.9, 0.1),
    ),
    1.0,
    {"wire": 0.0, "pcie": 0.1},
)


def svg_in(markup):
    return ET.fromstring(f"<all>{markup}</all>")


def test_bars_are_as_long_as_the_parts_are_large(planned):
    drawn = svg_in(memory_bars_svg(planned))
    rows = planned.rows
    boxes = [box for box in drawn.iter("rect") if "part" in box.get("class").split()]
    percents = iter([(float(box.get("x")[:-1]), float(box.get("width")[:-1]), box.get("class")) for box in boxes])
    scale = max(max(row.closed_form_peak, row.peak) for row in rows)
    ends = []
    for row in rows:
        at = 0.0
        for part, n_bytes in row.bytes_by_part.items():
            if n_bytes:
                x, width, kind = next(percents)
                assert kind == f"part fill-{part}"
                assert x == pytest.approx(at, abs=0.02)
                assert width == pytest.approx(100 * n_bytes / (1.03 * scale), abs=0.01)
                at = x + width
        ends.append(at)
    assert next(percents, None) is None
    assert ends.index(max(ends)) == [row.closed_form_peak for row in rows].index(max(r.closed_form_peak for r in rows))
    words = " ".join(drawn.itertext())
    assert "usable 78.1 GB, far to the right" in words
    assert words.count("\u2713") == 1


def test_the_same_bars_in_matplotlib(planned):
    figure = memory_bars(planned)
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook asks for
    (axes,) = figure.axes
    scale = 1e9 if max(row.peak for row in planned.rows) >= 1e9 else 1e6
    for container, part in zip(axes.containers, PART_COLOURS, strict=True):
        widths = [patch.get_width() * scale for patch in container.patches]
        assert widths == pytest.approx([row.bytes_by_part[part] for row in planned.rows])
    assert next(label.get_text() for label in axes.get_yticklabels()) == "stage 3"


def test_memory_over_time_reaches_the_peak(planned, compiled_row):
    use = compiled_row.compiled.program.memory_use
    markup = memory_over_time_svg(use, planned.cluster.usable)
    drawn = svg_in(markup)
    paths = {path.get("class"): path.get("d") for path in drawn.iter("path")}
    heights = [1000 - float(y) for d in paths.values() for y in re.findall(r"[ML]\S+ (\S+?)(?=[LZ])", d)]
    assert max(heights) == pytest.approx(1000 / 1.08, abs=0.2)  # the peak fills all but a margin
    assert set(paths) == {f"fill-{part}" for part in PART_COLOURS if use.n_bytes[part].any()}
    (axes,) = memory_over_time(use).axes
    top = max(vertex[1] for area in axes.collections for path in area.get_paths() for vertex in path.vertices)
    assert top * (1e9 if use.peak >= 1e9 else 1e6) == pytest.approx(use.peak)


def test_the_timeline_has_every_round():
    found = pieces(TIMELINE)
    edges = [edge for run in found["compute", "product"] for edge in run]
    assert edges == pytest.approx([0.1 * i for i in range(1, 9)])
    assert len(found["wire", "all-gather"]) == 4
    drawn = svg_in(timeline_svg(TIMELINE))
    boxes = {path.get("class"): path.get("d") for path in drawn.iter("path")}
    widths = [int(w) for w in re.findall(r"h(\d+)v", boxes["fill-product"])]
    assert widths == [1000] * 4
    assert "compute 50%, between GPUs 20%, over PCIe 10%; waiting: over PCIe 10%" in " ".join(drawn.itertext())
    (axes,) = timeline_figure(TIMELINE).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["compute", "between GPUs", "over PCIe"]


@given(st.lists(st.tuples(st.floats(0, 0.9), st.floats(0.001, 0.1)), min_size=1, max_size=20))
def test_merging_keeps_what_is_busy(runs):
    spans = tuple(Span("compute", "kernel", "k", "", start, seconds) for start, seconds in runs)
    (merged,) = pieces(Timeline(spans, 1.0, {})).values()
    assert all(a[1] < b[0] for a, b in itertools.pairwise(merged))
    for start, seconds in runs:
        assert any(a <= start and start + seconds <= b for a, b in merged)
    covered = sum(b - a for a, b in merged)
    assert max(s for _, s in runs) - 1e-9 <= covered <= sum(s for _, s in runs) + len(runs) / 4000 + 1e-9


@given(st.integers(1, 10**14))
def test_ticks_are_few_and_on_the_picture(most):
    found = ticks(most)
    assert 2 <= len(found) <= 6
    assert found[0] == 0
    assert found[-1] <= most
    assert most - found[-1] < found[1] * 1.0000001


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [PART_COLOURS, SPAN_COLOURS], ids=["parts", "spans"])
def test_colours_stand_out_from_the_page_and_from_each_other(colours):
    for shade, paper in (("light", "#ffffff"), ("dark", "#14171c")):
        shown = [getattr(colour, shade) for colour in colours.values()]
        for colour in shown:
            brighter, darker = sorted([luminance(colour), luminance(paper)], reverse=True)
            assert (brighter + 0.05) / (darker + 0.05) >= 3, (shade, colour)
        assert len(set(shown)) == len(shown)
