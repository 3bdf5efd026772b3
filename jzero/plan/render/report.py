"""A plan as one HTML file: its tables, its pictures and what to read in them. It loads nothing, from anywhere."""

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from jzero.explain.layouts import asset, layouts_html
from jzero.plan.render.bars import memory_bars_svg
from jzero.plan.render.memory import memory_over_time_svg
from jzero.plan.render.plan_table import plan_view
from jzero.plan.render.spans import timeline_svg
from jzero.plan.render.style import colour_rules, setting_name, tag, text
from jzero.plan.search.planner import Plan
from jzero.plan.search.row import Row

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_COLOURS = {"green": "good", "red": "bad"}  # of the tables

_GLOSSARY = {
    "params, optim": "What lasts on the GPU: master parameters and the optimizer's state, padding included.",
    "grads": "Gradients: whole at stages 0 and 1, shards at 2 and 3 and those on their way.",
    "gathered": "Parameters in the form in which compute reads them, gathered or cast.",
    "activ.": "What the forward pass keeps for the backward pass, and what is being computed.",
    "rest": "The batch, model state, constants of loops, and pieces of state on their way from the host.",
    "peak, compiled": "The sum, by the closed form; and the peak of the program that XLA compiles for these GPUs.",
    "room": "What the peak leaves of the usable memory. Negative: the setting does not fit.",
    "paper": "The ZeRO paper's formula for model states: 16 bytes a parameter with Adam, without activations.",
    "gather, scatter, reduce": "Bytes that one GPU sends in a step, by collective.",
    "in node, network": "The same bytes by link: to GPUs of its own node, over NVLink or PCIe, and to other nodes.",
    "two-level, MiCS": "Groups of GPUs, such as nodes: the state divided over all, or copied in every group.",
    "host/node": "Host memory that offloaded state and gradients take, for all GPUs of a node.",
}


def report_html(plan: Plan, overrides: Sequence[str] = ()) -> str:
    """Writes a plan as a page.

    Args:
        plan: from `jzero.plan.plan`; with `memory_use=True` it shows memory over time too, if something was compiled.
        overrides: the recommended setting as changes to a run file.

    Returns:
        The text of one HTML file.
    """
    cluster, found = plan.cluster, plan.recommendation
    title = f"{_count(plan.n_params)} parameters on {cluster.n_gpus:,} {cluster.gpu}"
    renderables = plan_view(plan).renderables
    head, *rest = (r for r in renderables if isinstance(r, Text | Table))
    answer = {found.reason, *found.advice}
    tables = "".join(_rendered(r) for r in rest if str(r) not in answer)
    content = [
        tag("h1", text(title)),
        tag("p", text(head)),
        tag("div", *(tag("p", text(t)) for t in (found.reason, *found.advice)), _overrides(overrides), class_="answer"),
        _section("Memory of one GPU, by part", memory_bars_svg(plan), _BARS),
        tag("h2", "The same in numbers, and what is sent"),
        tables,
        *_over_time(plan),
        *_layouts(plan),
        tag("h2", "What the columns mean"),
        tag("dl", *(tag("dt", text(word)) + tag("dd", text(meaning)) for word, meaning in _GLOSSARY.items())),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{tag('title', text('Plan: ' + title))}"
        f"<style>{asset(__package__, 'report.css')}{colour_rules()}</style></head>"
        f"<body><main>{''.join(content)}</main><script>{asset(__package__, 'report.js')}</script></body></html>\n"
    )


_BARS = (
    "Each bar is the fullest moment of a step, by the closed form; an upright mark is the peak of the compiled "
    "program. The dashed line is what a program can have of the GPU's memory. A check mark stands at the "
    "recommended setting."
)
_USE = (
    "What is alive on one GPU as the compiled program goes through its schedule, from left to right in operations, "
    "not in time; a loop's body is there once. Passes overlap a little where the scheduler moves operations."
)
_ESTIMATED_USE = (
    "What the closed form reckons to be alive on one GPU in the forward and backward pass, from left to right in "
    "operations, not in time; a loop's body is there once."
)
_TIME = (
    "A simulation of the compiled schedule with what programs commonly get of the GPU's and the network's peak rates: "
    "better for comparing settings than for telling seconds. Traffic costs time only where no kernel runs beside it."
)
_LAYOUTS = (
    "Which device holds which part of each parameter between steps; its gradient's shard and its optimizer state lie "
    "alike. Choose a parameter to see all parts; zoom with the buttons or the wheel, and move by dragging."
)


def _count(n: int) -> str:
    for scale, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if n >= scale:
            return f"{n / scale:.3g}{unit}"
    return f"{n:,}"


def _section(title: str, picture: str, caption: str) -> str:
    return tag("section", tag("h2", text(title)), tag("figure", picture, tag("figcaption", text(caption))))


def _overrides(overrides: Sequence[str]) -> str:
    if not overrides:
        return ""
    return tag("p", "In the run file, or after it on the command line:") + tag("pre", text("\n".join(overrides)))


def _over_time(plan: Plan) -> Iterator[str]:
    row = _shown(plan)
    program, name = row.compiled and row.compiled.program, setting_name(row.setting, plan.base)
    if row.memory_use is not None:
        picture, caption = (
            memory_over_time_svg(row.memory_use, plan.cluster.usable),
            _USE if program and program.memory_use else _ESTIMATED_USE,
        )
        yield _section(f"Memory over the step: {name}", picture, caption)
    if program is None:
        yield tag("h2", "Timeline of a step")
        yield tag("p", "It is read off a compiled program, and this setting was not compiled.")
        return
    yield _section(f"Timeline of a step: {name}", timeline_svg(program.timeline(plan.cluster.figures)), _TIME)


def _shown(plan: Plan) -> Row:
    """The row that pictures of one setting show: the recommended one, or else one that was compiled, or any."""
    of_interest = (lambda row: row.setting == plan.recommendation.setting, lambda row: row.compiled, lambda _: True)
    return next(row for is_it in of_interest for row in plan.rows if is_it(row))


def _layouts(plan: Plan) -> Iterator[str]:
    first = _shown(plan)
    rows = sorted(plan.rows, key=lambda row: row is not first)
    named = {setting_name(row.setting, plan.base): row.layouts for row in rows if row.layouts is not None}
    if named:
        yield _section("Layout of each parameter", layouts_html(named), _LAYOUTS)


def _rendered(part: Text | Table) -> str:
    """A table or a line of a plan as HTML."""
    if isinstance(part, Text):
        return tag("p", text(part.plain), class_="soft")
    align = ["number" if column.justify == "right" else "" for column in part.columns]
    heads = (
        tag("th", _cell(column.header), scope="col", class_=kind)
        for column, kind in zip(part.columns, align, strict=True)
    )
    cells = zip(*(column.cells for column in part.columns), strict=True)
    rows = (
        tag(
            "tr",
            *(tag("td", _cell(c), class_=kind) for c, kind in zip(row, align, strict=True)),
            class_=_emphasis(style),
        )
        for row, style in zip(cells, (row.style for row in part.rows), strict=True)
    )
    title = Text.from_markup(str(part.title or "")).plain
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="plan")
    return tag("p", text(title), class_="caption") + tag(
        "div", table, class_="scroll", tabindex=0, role="region", aria_label=title
    )


def _emphasis(style: object) -> str:
    return "chosen" if "bold" in str(style or "") else ""


def _cell(content: object) -> str:
    """A cell with its colour; colours of the terminal become those of the page."""
    written = content if isinstance(content, Text) else Text.from_markup(str(content))
    kind = next((_COLOURS[str(s.style)] for s in written.spans if str(s.style) in _COLOURS), "")
    return tag("span", text(written.plain), class_=kind) if kind else text(written.plain)
