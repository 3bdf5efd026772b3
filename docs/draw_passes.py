"""Draws `docs/passes.svg`: stage 3's forward and backward pass over three blocks. `make docs` runs it."""

from pathlib import Path

WIDTH, GAP, BOX_HEIGHT, BAR_HEIGHT = 220, 130, 70, 30
COLUMNS = {i: 40 + (i - 1) * (WIDTH + GAP) for i in (1, 2, 3)}
FORWARD_BARS, FORWARD_BOXES, BACKWARD_BOXES, BACKWARD_BARS = 52, 100, 240, 328
SCATTER_BARS = BACKWARD_BARS + BAR_HEIGHT + 10

STYLE = """
text { font: 13px sans-serif; fill: #1f2933; } .small { font-size: 12px; fill: #52606d; }
.title { font-size: 14px; font-weight: bold; }
.box { fill: #f5f7fa; stroke: #52606d; stroke-width: 1.2; }
.gather { fill: #d0e8ff; stroke: #1c6dd0; } .scatter { fill: #ffe3c9; stroke: #c2570c; }
.data { stroke: #52606d; stroke-width: 2; fill: none; } .weight { stroke: #1c6dd0; stroke-width: 2; fill: none; }
.placeholder { stroke: #1c6dd0; stroke-width: 1.3; stroke-dasharray: 5 4; fill: none; }
.kept { stroke: #52606d; stroke-width: 1.3; stroke-dasharray: 2 3; fill: none; }
"""
HEADS = "".join(
    f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
    f'<path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
    for name, colour in (("grey", "#52606d"), ("blue", "#1c6dd0"))
)


def text(x: int, y: int, words: str, kind: str = "", anchor: str = "middle") -> str:
    """A line of text."""
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def box(x: int, y: int, *lines: str) -> str:
    """The products of one unit."""
    words = "".join(
        text(x + WIDTH // 2, y + 26 + 20 * i, line, "" if i == 0 else "small") for i, line in enumerate(lines)
    )
    return f'<rect class="box" x="{x}" y="{y}" width="{WIDTH}" height="{BOX_HEIGHT}" rx="4"/>{words}'


def bar(x: int, y: int, words: str, kind: str) -> str:
    """A collective, beside the products of the unit above or below it."""
    shape = f'<rect class="{kind}" x="{x}" y="{y}" width="{WIDTH}" height="{BAR_HEIGHT}" rx="12"/>'
    return shape + text(x + WIDTH // 2, y + 20, words)


def arrow(points: str, kind: str) -> str:
    """A value on its way."""
    head = "blue" if kind in ("weight", "placeholder") else "grey"
    return f'<polyline class="{kind}" points="{points}" marker-end="url(#{head})"/>'


def forward() -> str:
    """The upper half, from left to right."""
    parts = [text(40, 28, "Forward, left to right", "title", "start")]
    for i, x in COLUMNS.items():
        then = "then drops it" if i < 3 else "and keeps it: it is used next"
        what = "gathers and uses W1" if i == 1 else f"computes with W{i}"
        parts.append(box(x, FORWARD_BOXES, f"block {i} {what}", then))
        if i == 3:
            continue
        parts.append(bar(x, FORWARD_BARS, f"gather W{i + 1}", "gather"))
        right, following, between = x + WIDTH, x + WIDTH + GAP, x + WIDTH + GAP // 2
        start, end, down = FORWARD_BARS + BAR_HEIGHT // 2, FORWARD_BOXES + 10, FORWARD_BOXES + 36
        parts.append(arrow(f"{right},{start} {between},{start} {between},{end} {following},{end}", "weight"))
        parts.append(text(between, start - 6, f"W{i + 1}, as a value", "small"))
        parts.append(arrow(f"{right},{down} {following},{down}", "data"))
        parts.append(text(between, down - 5, "activations", "small"))
        parts.append(arrow(f"{right},{down + 24} {following},{down + 24}", "placeholder"))
        parts.append(text(between, down + 19, f"zeros like W{i}", "small"))
    return "".join(parts)


def backward() -> str:
    """The lower half, from right to left."""
    parts = [text(40, BACKWARD_BOXES - 28, "Backward, right to left", "title", "start")]
    for i, x in COLUMNS.items():
        parts.append(box(x, BACKWARD_BOXES, f"gradients of block {i}, with W{i}", f"then drops W{i}"))
        parts.append(bar(x, SCATTER_BARS, f"scatter the gradient of W{i}", "scatter"))
        kept = x + WIDTH - 10
        parts.append(arrow(f"{kept},{FORWARD_BOXES + BOX_HEIGHT} {kept},{BACKWARD_BOXES}", "kept"))
        if i == 1:
            continue
        parts.append(bar(x, BACKWARD_BARS, f"gather W{i - 1} again", "gather"))
        before, between = x - GAP, x - GAP // 2
        start, end, down = BACKWARD_BARS + BAR_HEIGHT // 2, BACKWARD_BOXES + BOX_HEIGHT - 10, BACKWARD_BOXES + 24
        parts.append(arrow(f"{x},{down} {before},{down}", "data"))
        parts.append(text(between, down - 6, "cotangents", "small"))
        parts.append(arrow(f"{x},{start} {between},{start} {between},{end} {before},{end}", "weight"))
        parts.append(text(between, start + 20, f"W{i - 1}, in place of", "small"))
        parts.append(text(between, start + 36, "the zeros' cotangent", "small"))
    parts.append(text(COLUMNS[2] + WIDTH - 18, BACKWARD_BOXES - 28, "kept: activations, no weights", "small", "end"))
    return "".join(parts)


if __name__ == "__main__":
    picture = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 420" width="1000" height="420">'
        f'<style>{STYLE}</style><defs>{HEADS}</defs><rect width="1000" height="420" fill="#ffffff"/>'
        f"{forward()}{backward()}</svg>\n"
    )
    (Path(__file__).parent / "passes.svg").write_text(picture, encoding="utf-8")
