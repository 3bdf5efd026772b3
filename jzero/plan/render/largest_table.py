"""The largest micro-batches or models as one rich table that reads at 80 columns."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from jzero.base.units import format_bytes
from jzero.plan.render.plan_table import setting_name
from jzero.plan.search.largest import Largest
from jzero.plan.search.recommendation import cost
from jzero.plan.search.row import Row


def largest_view(found: Sequence[Largest]) -> Group:
    """A line for each setting, and a sentence that names the one to take.

    Args:
        found: from `jzero.plan.max_batch` or `jzero.plan.largest_model`.
    """
    models = any(entry.model for entry in found)
    fitting = [entry for entry in found if entry.row]
    table = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold", title_style="bold")
    table.title = f"The largest {'model' if models else 'micro-batch'} that fits"
    table.title_justify = "left"
    sizes = ["parameters", "d_model", "n_layer"] if models else ["micro-batch", "samples/step"]
    compiled = ["compiled"] * any(row.compiled for entry in fitting if (row := entry.row))
    table.add_column("stage")
    for heading in (*sizes, "peak", *compiled, "room", "host/node"):
        table.add_column(heading, justify="right", no_wrap=True)
    best = min(fitting, key=lambda entry: _rank(entry, models), default=None)
    for entry in found:
        name = setting_name(entry.setting, entry.setting)
        if entry.row is None:
            table.add_row(name, *["-"] * len(sizes), "not even the smallest fits")
            continue
        cells = _memory(entry.row, bool(compiled))
        table.add_row(name, *_sizes(entry, entry.row), *cells, style="bold" if entry is best else None)
    return Group(table, "", Text(_sentence(best, models)))


def _rank(entry: Largest, models: bool) -> tuple[float, ...]:
    assert entry.row is not None
    return (-entry.row.n_params if models else 0, *cost(entry.row))


def _sizes(entry: Largest, row: Row) -> list[str]:
    if entry.model:
        return [_count(row.n_params), str(entry.model["d_model"]), str(entry.model["n_layer"])]
    setting = row.setting
    return [f"{setting.micro_batch:,}", f"{setting.micro_batch * setting.accumulation * row.cluster.n_gpus:,}"]


def _memory(row: Row, compiled: bool) -> list[str]:
    peak = ("~" if row.estimated else "") + format_bytes(row.closed_form_peak)
    seen = [format_bytes(row.compiled.peak) if row.compiled else ""] * compiled
    return [peak, *seen, format_bytes(row.headroom), format_bytes(row.host_per_node) if row.host_per_node else "-"]


def _count(n: int) -> str:
    """Parameters as people say them.

    >>> _count(1_557_611_200), _count(124_439_808)
    ('1.56B', '124M')
    """
    return f"{n / 1e9:.3g}B" if n >= 1e9 else f"{n / 1e6:.3g}M"


def _sentence(best: Largest | None, models: bool) -> str:
    if best is None or best.row is None:
        return "Nothing fits, not even the smallest."
    row, setting = best.row, best.row.setting
    how = "as compiled" if row.compiled else "by the closed form"
    took = f"{how} it takes {format_bytes(row.peak)} of the {format_bytes(row.cluster.usable)} usable"
    if models:
        return f"The largest is {_count(row.n_params)} parameters, under {setting}: {took}."
    return f"The least time per sample is that of {setting} with {setting.micro_batch:,} samples a GPU: {took}."
