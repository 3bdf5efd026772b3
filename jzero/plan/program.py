"""The instrument: what a compiled program holds and sends, read from the program itself.

`read_program` turns a compiled program into a `Program`: memory per device, every collective (see
`jzero.plan.collectives`), and the flops of its matrix products. Tests, benchmarks and the planner assert on it.
"""

import dataclasses
import json
from typing import Any

import jax
from jax.sharding import Mesh
from rich.table import Table

from jzero.plan.collectives import KINDS, Collective, read_collectives
from jzero.plan.flops import FlopCounter
from jzero.plan.hlo import parse_module
from jzero.units import format_bytes


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes per device, and apart from them the bytes of host memory, as the compiler planned them.

    `alias` counts the outputs that reuse donated arguments; `peak` is the most that is alive at once, arguments
    included.
    """

    argument: int
    output: int
    alias: int
    temp: int
    peak: int
    host_argument: int
    host_output: int
    host_alias: int
    host_temp: int


@dataclasses.dataclass(frozen=True)
class Program:
    """A compiled program: its scheduled HLO text, its memory, its collectives, its matrix-product flops per device."""

    hlo_text: str = dataclasses.field(repr=False)
    memory: Memory
    collectives: tuple[Collective, ...]
    flops: int

    def select(self, *, kind: str | None = None, min_bytes: int = 0) -> tuple[Collective, ...]:
        """Collectives of one kind (of any, if None) with a payload of at least `min_bytes`."""
        return tuple(c for c in self.collectives if kind in (None, c.kind) and c.n_bytes >= min_bytes)

    def total_bytes(self, kind: str | None = None) -> int:
        """Payload bytes of all executions, per device."""
        return sum(c.n_bytes * c.executions for c in self.select(kind=kind))

    def wire_bytes(self, kind: str | None = None) -> int:
        """Bytes one device sends in all executions."""
        return sum(c.wire_bytes * c.executions for c in self.select(kind=kind))

    def overlapped_share(self, *, kind: str | None = None, min_bytes: int = 0) -> float:
        """Share of the payload bytes that travel beside matrix products; 1.0 where nothing travels."""
        selected = self.select(kind=kind, min_bytes=min_bytes)
        total = sum(c.n_bytes * c.executions for c in selected)
        return sum(c.n_bytes * c.executions for c in selected if c.overlapped_flops) / total if total else 1.0

    def to_json(self) -> str:
        """Everything but the HLO text, and the totals by kind, as a JSON object."""
        totals = {
            kind: {"n_bytes": self.total_bytes(kind), "wire_bytes": self.wire_bytes(kind)}
            for kind in KINDS
            if self.select(kind=kind)
        }
        content: dict[str, Any] = {
            "memory": dataclasses.asdict(self.memory),
            "flops": self.flops,
            "totals": totals,
            "collectives": [dataclasses.asdict(collective) for collective in self.collectives],
        }
        return json.dumps(content)

    def table(self, *, min_bytes: int = 0) -> Table:
        """The collectives as a rich table, alike ones on one row, the heaviest traffic first.

        Args:
            min_bytes: leaves out smaller payloads.
        """
        rows: dict[tuple, list[Collective]] = {}
        for c in self.select(min_bytes=min_bytes):
            key = (c.kind, c.dtype, c.shape, c.axes, c.group_size, c.executions, c.executions_known, c.asynchronous)
            rows.setdefault(key, []).append(c)
        memory = self.memory
        table = Table(
            title="Collectives, per device",
            caption=f"arguments {format_bytes(memory.argument)}, outputs {format_bytes(memory.output)} "
            f"({format_bytes(memory.alias)} aliased), temporaries {format_bytes(memory.temp)}, "
            f"peak {format_bytes(memory.peak)}",
        )
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


def read_program(compiled: jax.stages.Compiled, mesh: Mesh | None = None) -> Program:
    """Reads a compiled program.

    Args:
        compiled: what `jax.jit(f).lower(...).compile()` returns, for real or compile-only devices.
        mesh: the mesh it runs on, to name the axes that collectives run along.

    Returns:
        Its memory and its collectives.

    Example:
        >>> import jax.numpy as jnp
        >>> program = read_program(jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile())
        >>> program.collectives, program.memory.argument
        ((), 16)
    """
    text = compiled.as_text()
    stats: Any = compiled.memory_analysis()
    memory = Memory(
        argument=stats.argument_size_in_bytes,
        output=stats.output_size_in_bytes,
        alias=stats.alias_size_in_bytes,
        temp=stats.temp_size_in_bytes,
        peak=stats.peak_memory_in_bytes,
        host_argument=stats.host_argument_size_in_bytes,
        host_output=stats.host_output_size_in_bytes,
        host_alias=stats.host_alias_size_in_bytes,
        host_temp=stats.host_temp_size_in_bytes,
    )
    module = parse_module(text or "")
    flops = FlopCounter(module)
    return Program(
        hlo_text=text or "",
        memory=memory,
        collectives=read_collectives(module, None if mesh is None else mesh.shape),
        flops=flops.computation(module.entry),
    )
