"""A configuration for people, key by key in sections, and the same for programs."""

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic_core import to_jsonable_python
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from jzero.base.types import Json
from jzero.config.config import Config
from jzero.config.resolve.batch import NAMES
from jzero.config.schema.section import Section
from jzero.config.show.report import Line, lines

_COLOURS = {"honoured": "green", "translated": "cyan", "no effect here": "yellow", "refused": "red"}
_WIDTH = 80
"""Lines are laid out for the narrowest terminal that is usual; sentences wrap at the one there is."""


def plain(value: Json) -> str:
    """A value as people write it in JSON.

    >>> plain(500_000_000), plain(True), plain((0.9, 0.95)), plain("cpu")
    ('5e8', 'true', '[0.9, 0.95]', '"cpu"')
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10**5:
        digits = str(value).rstrip("0")
        return f"{digits}e{len(str(value)) - len(digits)}" if len(digits) < 4 else str(value)
    return json.dumps(_jsonable(value))


def _jsonable(value: Json) -> Json:
    """Dates, which only YAML has, become text."""
    return to_jsonable_python(value, exclude_none=True, fallback=str)


def config_view(config: Config, *, world: int, defaults: bool = False, said: str = "") -> RenderableType:
    """What a configuration says, where it comes from and what becomes of it, to be printed by rich.

    Args:
        config: as loaded or resolved; an `"auto"` that is not filled is shown as open.
        world: number of devices that take different data.
        defaults: whether to show keys that nobody has set.
        said: a sentence on the number of devices.

    Returns:
        The keys by section, then the notes, then the batch sizes; it wraps to the width of the console.
    """
    shown = lines(config, defaults=defaults)
    sections: dict[str, list[Line]] = {}
    for line in shown:
        sections.setdefault(line.path if isinstance(line.value, Section) else _around(line), []).append(line)
    parts: list[RenderableType] = []
    for path, inside in sections.items():
        parts += [*_section(path, inside, decoupled=_is_decoupled_adam(config)), ""]
    if config.notes:
        parts += [Text("Notes", "bold"), *(_indented(Text(f"{note}.")) for note in config.notes), ""]
    return Group(*parts, _batch(config, world), *([Text(said)] if said else []))


def config_object(config: Config, *, world: int, defaults: bool = False) -> dict[str, Json]:
    """The same as an object that `json.dumps` takes.

    Returns:
        `keys`, each with `path`, `value`, `origin`, `verdict` and `reason`; `notes`; `world`; and `batch`, the three
        batch sizes, null where they are open.
    """
    keys = [
        {"path": line.path, "value": _jsonable(line.value), "origin": line.origin, "verdict": line.verdict.kind}
        | {"reason": line.verdict.reason}
        for line in lines(config, defaults=defaults)
        if not isinstance(line.value, Section)
    ]
    return {"world": world, "batch": _sizes(config), "notes": config.notes, "keys": keys}


class _Cells(NamedTuple):
    """What a line shows, in columns."""

    name: str
    value: str
    verdict: str
    origin: str


class _Widths(NamedTuple):
    """Those of the first three columns, in characters."""

    name: int
    value: int
    verdict: int


def _cells(line: Line) -> _Cells:
    value = "" if line.value is None else plain(line.value)
    # What is shown was not refused: its value is one that asks for nothing.
    kind = "refused if set" if line.verdict.kind == "refused" else line.verdict.kind
    return _Cells(line.path.rpartition(".")[2], value, kind, line.origin)


def _rows(line: Line, widths: _Widths) -> Iterator[RenderableType]:
    """A line whose columns are as wide in the whole section; an origin that does not fit beside them goes below."""
    *cells, origin = _cells(line)
    style = {"open": "magenta", "default": "dim"}.get(line.origin, "")
    fits = len(origin) <= _WIDTH - 8 - sum(widths)
    grid = Table.grid(padding=(0, 2))
    for width, column_style in zip(widths, ("bold", "", _COLOURS[line.verdict.kind]), strict=True):
        grid.add_column(width=width, style=column_style, overflow="fold")
    grid.add_column(style=style)
    grid.add_row(*map(Text, cells), Text(origin if fits else ""))
    yield Padding(grid, (0, 0, 0, 2), expand=False)
    if not fits:
        yield _indented(Text(origin, style), 6)


def _widths(inside: list[Line]) -> _Widths:
    """What the keys, values and verdicts of a section take."""
    columns = zip(*(_cells(line) for line in inside), strict=True)
    name, value, kind, _ = (max(map(len, column)) for column in columns)
    return _Widths(name, min(value, max(10, _WIDTH - 20 - name - kind)), kind)


def _around(line: Line) -> str:
    return line.path.rpartition(".")[0]


def _section(path: str, inside: list[Line], *, decoupled: bool) -> list[RenderableType]:
    """A heading and the keys under it; a reason that they share with the section is said once."""
    parts: list[RenderableType] = [Text(path or "top level", "bold underline")]
    said = inside[0].verdict if isinstance(inside[0].value, Section) else None
    if said and said.kind != "honoured":
        parts.append(_indented(_verdict(said.kind, said.reason)))
    keys = [line for line in inside if not isinstance(line.value, Section)]
    for line in keys:
        parts += _rows(line, _widths(keys))
        if line.verdict.kind != "honoured" and line.verdict != said:
            parts.append(_indented(Text(line.verdict.reason, "dim"), 6))
        if line.path == "optimizer.type" and decoupled:
            parts.append(_indented(Text("AdamW: its weight decay is decoupled, unless adam_w_mode is false", "dim"), 6))
    return parts


def _is_decoupled_adam(config: Config) -> bool:
    """Whether the type is called Adam and the update is AdamW's, as in DeepSpeed."""
    optimizer = config.optimizer
    if optimizer is None or optimizer.type.lower() != "adam":
        return False
    return getattr(optimizer.params, "adam_w_mode", False) is True


def _verdict(kind: str, reason: str) -> Text:
    return Text.assemble((kind, _COLOURS[kind]), ": ", (reason, "dim"))


def _indented(text: Text, by: int = 2) -> Padding:
    return Padding(text, (0, 0, 0, by), expand=False)


def _sizes(config: Config) -> Mapping[str, int] | None:
    sizes = {name: getattr(config, name) for name in NAMES}
    return sizes if all(isinstance(size, int) for size in sizes.values()) else None


def _batch(config: Config, world: int) -> Text:
    if _sizes(config) is None:
        return Text("The batch sizes are open: the training arguments decide.")
    total, micro, accumulation = (getattr(config, name) for name in NAMES)
    return Text(f"Batch: {total} samples = {micro} a device x {accumulation} micro-batches x {world} data shards.")
