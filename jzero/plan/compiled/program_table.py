"""Tables of what a program sends: its collectives, and its loops with the times of both."""

from collections.abc import Iterable

from rich.table import Table

from jzero.base.units import format_bytes
from jzero.plan.compiled.collectives import Collective
from jzero.plan.compiled.traffic import LoopTraffic


def collective_table(collectives: Iterable[Collective], caption: str) -> Table:
    """Alike collectives on one row, the heaviest traffic first.

    Args:
        collectives: from `jzero.plan.compiled.collectives.read_collectives`.
        caption: goes below.

    Returns:
        The table.
    """
    rows: dict[tuple, list[Collective]] = {}
    for c in collectives:
        key = (c.kind, c.dtype, c.shape, c.axes, c.group_size, c.executions, c.executions_known, c.asynchronous)
        rows.setdefault(key, []).append(c)
    table = Table(title="Collectives, per device", caption=caption)
    for heading in ("kind", "payload", "over", "count"):
        table.add_column(heading)
    for heading in ("runs each", "bytes each", "sent in all", "beside products"):
        table.add_column(heading, justify="right")
    for group in sorted(rows.values(), key=lambda group: -sum(c.wire_bytes * c.executions for c in group)):
        first = group[0]
        hidden = sum(c.overlapped_flops > 0 for c in group)
        table.add_row(
            first.kind,
            f"{first.dtype}[{','.join(map(str, first.shape))}]",
            f"{first.group_size} ({', '.join(first.axes)})" if first.axes else str(first.group_size),
            str(len(group)),
            f"{first.executions}" if first.executions_known else f">={first.executions}",
            format_bytes(first.n_bytes),
            format_bytes(sum(c.wire_bytes * c.executions for c in group)),
            f"{hidden} of {len(group)}" if first.asynchronous else "synchronous",
        )
    return table


def traffic_table(loops: Iterable[LoopTraffic], gpu: str) -> Table:
    """One row per loop, then their sum.

    Args:
        loops: from `jzero.plan.compiled.traffic.loop_traffic`.
        gpu: name of the GPU whose speed the times are reckoned with.

    Returns:
        The table.
    """
    loops = list(loops)
    table = Table(title=f"Traffic by loop, per device, at the peak speed of {gpu}")
    for heading in ("loop", "from"):
        table.add_column(heading, overflow="fold")
    headings = ("rounds", "gathered", "scattered", "reduced", "other", "beside products", "communication ms")
    for heading in (*headings, "products ms", "of them beside ms", "exposed ms"):
        table.add_column(heading, justify="right")
    for loop in loops:
        sent = (loop.gathered_bytes, loop.scattered_bytes, loop.reduced_bytes, loop.other_bytes)
        times = (loop.communication_seconds, loop.product_seconds, loop.beside_seconds, loop.exposed_seconds)
        table.add_row(
            loop.loop or "(outside of loops)",
            loop.op_name,
            f"{loop.runs}" if loop.runs_known else f">={loop.runs}",
            *map(format_bytes, sent),
            f"{loop.overlapped_share:.0%}",
            *[f"{1e3 * seconds:.3f}" for seconds in times],
        )
    table.add_section()
    total = lambda name: sum(getattr(loop, name) for loop in loops)
    table.add_row(
        "all",
        "",
        "",
        *[format_bytes(total(f"{name}_bytes")) for name in ("gathered", "scattered", "reduced", "other")],
        "",
        *[f"{1e3 * total(f'{name}_seconds'):.3f}" for name in ("communication", "product")],
        "",  # what stands beside an outer loop's collectives may stand beside an inner one's too
        f"{1e3 * total('exposed_seconds'):.3f}",
    )
    return table
