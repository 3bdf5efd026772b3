"""A plan as rich tables that read at 80 columns: memory, then host memory and traffic."""

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from jzero.base.terminal import escape
from jzero.base.units import format_bytes
from jzero.plan.compiled.collectives import KINDS
from jzero.plan.hardware.cluster import USABLE
from jzero.plan.memory_use import PARTS
from jzero.plan.search.planner import Plan
from jzero.plan.search.row import Row
from jzero.plan.search.setting import Setting

_PARTS = dict(zip(PARTS, ("params", "optim", "grads", "gathered", "activ.", "rest"), strict=True))
_MOVED = {"nothing": "", "optimizer": " opt", "optimizer and parameters": " opt+par"}
_GROUPS = {"none": "", "two levels": " two-level", "MiCS": " MiCS"}
_ATTENTION = {"cudnn": "cuDNN", "blockwise": "blocks", "pallas": "Pallas", "plain": "one product of all scores"}
_KINDS = {"all-gather": "gather", "reduce-scatter": "scatter", "all-reduce": "reduce"}


def plan_view(plan: Plan) -> Group:
    """Everything a plan says: tables, what is refused, the recommendation.

    Args:
        plan: from `jzero.plan.plan`.
    """
    cluster, base = plan.cluster, plan.base
    nodes = f"{cluster.n_nodes} node{'s' * (cluster.n_nodes > 1)} of {cluster.gpus_per_node}"
    nodes += f", {cluster.network}" * (cluster.n_nodes > 1)
    head = (
        f"{plan.n_params:,} parameters on {cluster.n_gpus:,} {cluster.gpu} ({nodes}); {base.micro_batch} samples a "
        f"GPU x {base.accumulation} micro-batches. Of each GPU's {format_bytes(cluster.memory)}, {USABLE:.0%} are "
        f"usable: {format_bytes(cluster.usable)}."
    )
    if plan.attention:
        head += f" Attention runs in {' and '.join(_ATTENTION[path] for path in plan.attention)}."
    if cluster.figures.target is None:
        head += f" XLA cannot compile for {cluster.gpu}: all of this is by the closed form."
    found = plan.recommendation
    last = [Text(text) for text in (found.reason, *found.advice)]
    refusals = [
        Text(f"Not {setting}: {reason.removeprefix('configuration: ')}") for setting, reason in plan.refused.items()
    ]
    return Group(Text(head), "", *_memory(plan), "", *_traffic(plan), "", *_times(plan), "", *refusals, *last)


def setting_name(setting: Setting, base: Setting) -> str:
    """What a table calls a setting: its stage, what it offloads, and where it departs from the run as given.

    >>> setting_name(Setting(3, "optimizer", 2, 4), Setting(3, "nothing", 8, 1))
    '3 opt micro 2'
    """
    name = f"{setting.stage}{_GROUPS[setting.groups] if setting.stage == 3 else ''}{_MOVED[setting.offload]}"
    if setting.micro_batch != base.micro_batch:
        name += f" micro {setting.micro_batch}"
    return name + " remat" * setting.remat


def _memory(plan: Plan) -> Iterator[RenderableType]:
    unit, scale = _unit(max(row.peak for row in plan.rows))
    was_compiled = any(row.compiled for row in plan.rows)
    notes = ["opt: master copy and moments lie in host memory; opt+par: parameters and gradients too."]
    if any(row.estimated for row in plan.rows):
        notes.append("~: estimated, see docs/plan.md.")
    if any(row.setting.remat or row.setting.micro_batch != plan.base.micro_batch for row in plan.rows):
        notes.append("micro: samples a GPU; remat: blocks recomputed.")
    table = _table(f"Memory of one GPU, {unit}")
    headings = ["peak", *["compiled"] * was_compiled, "room", "paper"]
    for heading in (*_PARTS.values(), *headings):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in plan.rows:
        show = lambda n: _number(n / scale)
        colour, sign = ("green", "+") if row.headroom >= 0 else ("red", "-")
        headroom = f"[{colour}]{sign}{show(abs(row.headroom))}[/]"
        peak = ("~" if row.estimated else "") + show(row.closed_form_peak)
        compiled = [show(row.compiled.peak) if row.compiled else ""] * was_compiled
        parts = [show(row.bytes_by_part[part]) for part in _PARTS]
        _add(table, plan, row, [*parts, peak, *compiled, headroom, show(sum(row.paper.values()))])
    yield table
    yield Text(" ".join(notes), style="dim")


def _traffic(plan: Plan) -> Iterator[RenderableType]:
    totals = [sum(wire.values()) for row in plan.rows for wire in (row.wire.inside, row.wire.across)]
    unit, scale = _unit(max([*totals, *(row.host_per_node for row in plan.rows)], default=0))
    kinds = [k for k in KINDS if any(k in (*row.wire.inside, *row.wire.across) for row in plan.rows)]
    several = plan.cluster.n_nodes > 1
    was_compiled, offloads = any(row.compiled for row in plan.rows), any(row.to_device for row in plan.rows)
    table = _table(f"Traffic of one GPU in a step, and host memory, {unit}")
    links = ["in node", "network"] * several
    columns = [*[_KINDS.get(kind, kind) for kind in kinds], *links, *["overlap"] * was_compiled]
    for heading in (*columns, *["PCIe in|out", "host/node"] * offloads):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in plan.rows:
        totals = [row.wire.inside.get(k, 0) + row.wire.across.get(k, 0) for k in kinds]
        if several:
            totals += [sum(link.values()) for link in (row.wire.inside, row.wire.across)]
        cells = [_number(n / scale) for n in totals]
        share = [f"{row.compiled.overlapped_share:.0%}" if row.compiled else ""] * was_compiled
        taken = _number(row.host_per_node / scale)
        taken = f"[red]{taken}[/]" if row.host_headroom < 0 else taken
        host = [_both((row.to_device, row.to_host), scale), taken] * offloads
        _add(table, plan, row, [*cells, *share, *host])
    notes = ["in node, network: of what is sent, to GPUs of the node and to other nodes."] if several else []
    if several and any(row.setting.groups != "none" for row in plan.rows):
        notes.append("two-level: zero_hpz_partition_size; MiCS: mics_shard_size.")
    if was_compiled:
        notes.append("overlap: share of the bytes that travels beside products, as compiled.")
    yield table
    if notes:
        yield Text(" ".join(notes), style="dim")


def _times(plan: Plan) -> Iterator[RenderableType]:
    slowest = max(row.time.high for row in plan.rows)
    unit, scale = ("s", 1.0) if slowest >= 1 else ("ms", 1e-3)
    offloads = any(row.time.pcie for row in plan.rows)
    table = _table(f"Time of a step, {unit}, estimated")
    for heading in ("compute", "wire", "exposed", *["PCIe"] * offloads, "step"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in plan.rows:
        time = row.time
        parts = [time.compute, time.wire, time.exposed, *[time.pcie] * offloads]
        step = f"{_number(time.low / scale)} to {_number(time.high / scale)}"
        _add(table, plan, row, [*(_number(part / scale) for part in parts), step])
    yield table
    yield Text(
        "exposed: what nothing is computed beside, of the wire. step: by a fast and by a slow program; the parts lie "
        "between. See docs/plan.md.",
        style="dim",
    )


def _both(numbers: Iterable[int], scale: float) -> str:
    numbers = list(numbers)
    return "|".join(_number(n / scale) for n in numbers) if any(numbers) else "-"


def _table(title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
        title_style="bold",
        header_style="bold",
    )
    table.add_column("stage", overflow="fold")
    return table


def _add(table: Table, plan: Plan, row: Row, cells: list[str]) -> None:
    chosen = row.setting == plan.recommendation.setting
    table.add_row(escape(setting_name(row.setting, plan.base)), *cells, style="bold" if chosen else None)


def _unit(most: float) -> tuple[str, float]:
    """The unit in which all numbers of a table stand."""
    scales = {"GB": 1e9, "MB": 1e6}
    return next(((unit, scale) for unit, scale in scales.items() if most >= scale), ("kB", 1e3))


def _number(x: float) -> str:
    """Three digits, and nothing but a dash for nothing."""
    if not x:
        return "-"
    return f"{x:.2f}" if x < 9.995 else f"{x:.1f}" if x < 99.95 else f"{x:,.0f}"
