"""Shows what `gpu_real.py` found."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table


def tables(results: Mapping[str, Any]) -> Iterator[Table | str]:
    """One table for each part that was asked for, or why it was left out."""
    sizes = results["sizes"]
    yield (
        f"One {results['device_kind']}, jax {results['jax']}: {sizes['layers']} {results['form']} layers of width "
        f"{sizes['d_model']}, {sizes['rows']} x {sizes['seq_len']} tokens, bf16; {results['wall_seconds']:.0f} s in all"
    )
    shown = {"steps": _steps, "memory": _memory, "host": _host, "checkpoint": _checkpoint, "attention": _attention}
    for part, show in shown.items():
        if part in results:
            found = results[part]
            yield f"{part}: {found['left_out']}" if "left_out" in found else show(found, results)


def _steps(found: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    target = f"target at stage 0: a ratio of at least {results['target_ratio_of_stage_0']}"
    return _by_program("Steps", found["programs"], caption=target)


def _memory(found: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    scaled = {
        name: {key: value / 1e9 if isinstance(value, int) else value for key, value in row.items()}
        for name, row in found.items()
    }
    return _by_program("Memory, GB", scaled, caption=f"predicted for {results['predicted_for'] or 'no GPU'}")


def _by_program(title: str, columns: Mapping[str, Mapping[str, Any]], caption: str) -> Table:
    table = Table("", *columns, title=title, caption=caption)
    for key in dict.fromkeys(key for column in columns.values() for key in column):
        values = [column.get(key) for column in columns.values()]
        if any(value is not None for value in values):
            table.add_row(key.replace("_", " "), *map(_text, values))
    return table


def _host(found: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    table, rates, offload = Table("", "", title="Host memory"), found["gigabytes_per_second"], found["offload"]
    table.add_row("GB/s to the device", _text(rates["to_device"]))
    table.add_row("GB/s to the host", _text(rates["to_host"]))
    for where, value in offload["milliseconds"].items():
        table.add_row(f"ms a step, optimizer in the memory of the {where}", _text(value))
    table.add_row("GB over PCIe a step", _text(offload["bytes_over_pcie"] / 1e9))
    table.add_row("ms for those alone", _text(offload["milliseconds_of_transfers_alone"]))
    table.add_row("share of it hidden", _text(offload["share_hidden"]))
    return table


def _checkpoint(found: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    table = Table("", "s", title="Checkpoint")
    for name, value in found["seconds"].items():
        table.add_row(name.replace("_", " "), _text(value))
    table.add_row("stall / synchronous", f"{found['stall_share']:.1%}")
    return table


def _attention(found: Mapping[str, Any], results: Mapping[str, Any]) -> Table:
    paths = list(next(iter(found.values())))
    table = Table("largest relative error, ms", *paths, title="Attention against plain fp32, forward and backward")
    for case, row in found.items():
        cells = []
        for path in paths:
            one = row[path]
            errors = [one[what] for what in ("value", "dq", "dk", "dv") if what in one]
            cells.append("refused" if not errors else f"{max(errors):.1e}, {one['milliseconds']:.2f}")
        table.add_row(case, *cells)
    return table


def _text(value: Any) -> str:
    return "" if value is None else f"{value:,.3f}" if isinstance(value, int | float) else str(value)
