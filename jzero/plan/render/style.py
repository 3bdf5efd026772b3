"""Words and colours that all pictures share, and the few lines that write SVG."""

import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from jzero.errors import JzeroError
from jzero.plan.search.setting import Setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Colour(NamedTuple):
    """A colour on a light and on a dark background, at least 3:1 from either.

    Neighbours in a stack differ in lightness too, for those who cannot tell the hues apart.
    """

    light: str
    dark: str


PART_COLOURS: Mapping[str, Colour] = {
    "parameters": Colour("#0b4f8a", "#3d86d6"),
    "optimizer_state": Colour("#4e97d1", "#9ecbf5"),
    "gradients": Colour("#b5361c", "#e8694a"),
    "gathered_weights": Colour("#00856f", "#33c2a5"),
    "activations": Colour("#c07f00", "#f3bd4b"),
    "rest": Colour("#6f7683", "#9aa2b1"),
}
SPAN_COLOURS: Mapping[str, Colour] = {
    "product": Colour("#0b4f8a", "#3d86d6"),
    "kernel": Colour("#4e97d1", "#9ecbf5"),
    "all-gather": Colour("#00856f", "#33c2a5"),
    "reduce-scatter": Colour("#b5361c", "#e8694a"),
    "all-reduce": Colour("#c07f00", "#f3bd4b"),
    "other": Colour("#6f7683", "#9aa2b1"),
}


def new_figure(height: float) -> "tuple[Figure, Axes]":
    """An empty matplotlib figure, as wide as a notebook.

    Args:
        height: in inches.

    Raises:
        JzeroError: matplotlib is not installed.
    """
    try:
        from jzero.plan.render.figure import NotebookFigure
    except ModuleNotFoundError as error:
        raise JzeroError("Pictures for notebooks need matplotlib: pip install 'jzero[plot]'.") from error
    figure = NotebookFigure(figsize=(9, height), layout="constrained")
    return figure, figure.subplots()


def part_name(part: str) -> str:
    """A part of memory in words."""
    return part.replace("_", " ")


def setting_name(setting: Setting, base: Setting) -> str:
    """A setting in few words; the batch only where it is not the one given.

    Example:
        >>> base = Setting(0, "nothing", 4, 1)
        >>> setting_name(Setting(3, "optimizer and parameters", 2, 2, remat=True), base)
        'stage 3, optimizer + parameters on host, micro 2, remat'
    """
    words = [f"stage {setting.stage}{setting.in_groups}"]
    if setting.offload != "nothing":
        words.append(f"{setting.offload.replace('and', '+')} on host")
    if setting.micro_batch != base.micro_batch:
        words.append(f"micro {setting.micro_batch}")
    return ", ".join([*words, *["remat"] * setting.remat])


def tag(name: str, *content: str, **attributes: object) -> str:
    """An element: attributes are escaped, content is not, since it may be elements; text goes through `text`.

    Example:
        >>> tag("rect", tag("title", text("a < b")), x="10%", class_="jz-bar")
        '<rect x="10%" class="jz-bar"><title>a &lt; b</title></rect>'
    """
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    return f"<{name}{written}>{''.join(content)}</{name}>"


def text(value: object) -> str:
    """Anything as text that is safe in HTML and SVG, in attributes too."""
    return html.escape(str(value))


def percent(share: float) -> str:
    """A coordinate along an axis that is as wide as the window is.

    Example:
        >>> percent(1 / 3)
        '33.33%'
    """
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"


def chart(title: str, summary: str, drawn: Iterable[str], height: float) -> str:
    """A picture as wide as the page, with a title and a summary for those who cannot see it.

    Args:
        title: what it shows.
        summary: the same in words.
        drawn: its elements.
        height: in pixels.
    """
    said = (tag("title", text(title)), tag("desc", text(summary)))
    return tag("svg", *said, *drawn, width="100%", height=height, role="img", class_="chart")


def legend(entries: Iterable[tuple[str, str]]) -> str:
    """A line of colours and what they stand for.

    Args:
        entries: the name of a colour and a word for each.
    """
    items = (tag("li", tag("span", class_=f"swatch fill-{text(colour)}"), text(word)) for colour, word in entries)
    return tag("ul", *items, class_="legend")


def colour_rules() -> str:
    """The style sheet of the colours, for light and for dark backgrounds."""
    all_colours = {**PART_COLOURS, **SPAN_COLOURS}
    rules = lambda shade: "".join(
        f".fill-{name}{{fill:{getattr(c, shade)};background:{getattr(c, shade)}}}" for name, c in all_colours.items()
    )
    return f"{rules('light')}@media (prefers-color-scheme: dark){{{rules('dark')}}}"


def ticks(most: float) -> list[float]:
    """Three to six round numbers from 0 up to a maximum.

    Example:
        >>> ticks(29.1e9)
        [0.0, 10000000000.0, 20000000000.0]
    """
    if most <= 0:
        return [0.0]
    power = 10.0 ** len(str(int(most)))
    step = next(s for f in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if most / (s := f * power) <= 5.5)
    return [i * step for i in range(int(most / step) + 1)]
