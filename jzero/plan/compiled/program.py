"""The instrument: what a compiled program holds and sends, read from the program itself.

`read_program` turns a compiled program into a `Program`: memory per device, every collective (see
`jzero.plan.compiled.collectives`), and the flops of its matrix products; with a GPU's speed also how long they take,
loop by loop. Tests, benchmarks and the planner assert on it.
"""

import dataclasses
import json
from typing import Protocol, cast

import jax
from jax.sharding import Mesh
from rich.table import Table

from jzero.base.types import Json
from jzero.base.units import format_bytes
from jzero.plan.compiled.collectives import KINDS, Collective, overlapped_share, read_collectives
from jzero.plan.compiled.flops import FlopCounter
from jzero.plan.compiled.hlo import parse_module
from jzero.plan.compiled.program_table import collective_table, traffic_table
from jzero.plan.compiled.step_time import compiled_time
from jzero.plan.compiled.timeline import Timeline, simulate
from jzero.plan.compiled.traffic import LoopTraffic, loop_traffic
from jzero.plan.hardware.figures import GpuFigures, gpu_figures, is_known
from jzero.plan.hardware.pace import MIDDLE, StepTime
from jzero.plan.memory_use import MemoryUse


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes per device, and apart from them the bytes of host memory, as the compiler planned them.

    `alias` counts the outputs that reuse donated arguments; `peak` is the most that is alive at once, arguments
    included. The compiler's own figure counts host memory too, so that where there is some, `peak` is the sum of what
    the program takes: arguments, what it returns beside them, and temporaries.
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
    """A compiled program: its scheduled HLO text, its memory, its collectives, its matrix-product flops per device.

    `device_kind` is JAX's name of the devices it is for; `memory_use` is there where `compile_step` was asked for it.
    """

    hlo_text: str = dataclasses.field(repr=False)
    memory: Memory
    collectives: tuple[Collective, ...]
    flops: int
    device_kind: str = ""
    memory_use: MemoryUse | None = dataclasses.field(default=None, repr=False)

    def select(
        self, *, kind: str | None = None, min_bytes: int = 0, in_loops: bool | None = None
    ) -> tuple[Collective, ...]:
        """Collectives of one kind (of any, if None), at least so large, inside or outside of loops (both, if None)."""
        return tuple(
            c
            for c in self.collectives
            if kind in (None, c.kind) and c.n_bytes >= min_bytes and in_loops in (None, c.loop is not None)
        )

    def total_bytes(self, kind: str | None = None) -> int:
        """Payload bytes of all executions, per device."""
        return sum(c.n_bytes * c.executions for c in self.select(kind=kind))

    def wire_bytes(self, kind: str | None = None) -> int:
        """Bytes one device sends in all executions."""
        return sum(c.wire_bytes * c.executions for c in self.select(kind=kind))

    def overlapped_share(self, *, kind: str | None = None, min_bytes: int = 0, in_loops: bool | None = None) -> float:
        """Share of the payload bytes that travel beside matrix products, however short; 1.0 where nothing travels."""
        return overlapped_share(self.select(kind=kind, min_bytes=min_bytes, in_loops=in_loops))

    def loops(self, gpu: str | GpuFigures | None = None) -> tuple[LoopTraffic, ...]:
        """What each loop sends and multiplies and how long that takes; see `jzero.plan.compiled.traffic`.

        Args:
            gpu: a name from `jzero.plan.GPUS`, or figures of one's own; by default the GPU that the program is for.

        Returns:
            The code outside of loops first, then every loop with traffic or products.

        Raises:
            ConfigError: a GPU without known figures.
        """
        return loop_traffic(parse_module(self.hlo_text), self.collectives, self._figures(gpu))

    def timeline(self, gpu: str | GpuFigures | None = None) -> Timeline:
        """When each kernel, collective and copy of a step runs, at the middle of what programs get of a GPU's peaks.

        Args:
            gpu: see `loops`; `Cluster.figures` has the network of a cluster.
        """
        return simulate(parse_module(self.hlo_text), self.collectives, self._figures(gpu).at(MIDDLE))

    def step_time(self, gpu: str | GpuFigures | None = None) -> StepTime:
        """How long a step takes, see `jzero.plan.estimate.step_time`.

        Args:
            gpu: see `timeline`.
        """
        return compiled_time(parse_module(self.hlo_text), self.collectives, self._figures(gpu))

    def to_json(self, gpu: str | GpuFigures | None = None) -> str:
        """Everything but the HLO text, the totals by kind and the loops, as a JSON object.

        Args:
            gpu: see `loops`; where it is not given, a program for devices without figures has `"loops": null`.
        """
        loops = self.loops(gpu) if gpu or is_known(self.device_kind) else None
        totals = {
            kind: {"n_bytes": self.total_bytes(kind), "wire_bytes": self.wire_bytes(kind)}
            for kind in KINDS
            if self.select(kind=kind)
        }
        content: dict[str, Json] = {
            "memory": dataclasses.asdict(self.memory),
            "flops": self.flops,
            "device_kind": self.device_kind,
            "totals": totals,
            "loops": None if loops is None else [dataclasses.asdict(loop) for loop in loops],
            "collectives": [dataclasses.asdict(collective) for collective in self.collectives],
        }
        return json.dumps(content)

    def table(self, *, min_bytes: int = 0) -> Table:
        """The collectives as a rich table, alike ones on one row, the heaviest traffic first.

        Args:
            min_bytes: leaves out smaller payloads.
        """
        memory = self.memory
        return collective_table(
            self.select(min_bytes=min_bytes),
            caption=f"arguments {format_bytes(memory.argument)}, outputs {format_bytes(memory.output)} "
            f"({format_bytes(memory.alias)} aliased), temporaries {format_bytes(memory.temp)}, "
            f"peak {format_bytes(memory.peak)}",
        )

    def traffic_table(self, gpu: str | GpuFigures | None = None) -> Table:
        """What `loops` returns as a rich table."""
        return traffic_table(self.loops(gpu), self._figures(gpu).name)

    def _figures(self, gpu: str | GpuFigures | None) -> GpuFigures:
        return gpu if isinstance(gpu, GpuFigures) else gpu_figures(gpu or self.device_kind)


class _MemoryStats(Protocol):
    """What XLA says of a program's memory, in bytes of one device; `jax.stages.Compiled` gives it without a type."""

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    peak_memory_in_bytes: int
    host_argument_size_in_bytes: int
    host_output_size_in_bytes: int
    host_alias_size_in_bytes: int
    host_temp_size_in_bytes: int


def _peak(stats: _MemoryStats) -> int:
    if not stats.host_argument_size_in_bytes:
        return stats.peak_memory_in_bytes
    returned = stats.output_size_in_bytes - stats.alias_size_in_bytes
    return stats.argument_size_in_bytes + returned + stats.temp_size_in_bytes


def read_program(compiled: jax.stages.Compiled, mesh: Mesh | None = None) -> Program:
    """Reads a compiled program.

    Args:
        compiled: what `jax.jit(f).lower(...).compile()` returns, for real or compile-only devices.
        mesh: the mesh it runs on, to name the axes that collectives run along and to know who shares a node (that is,
            a process).

    Returns:
        Its memory and its collectives.

    Example:
        >>> import jax.numpy as jnp
        >>> program = read_program(jax.jit(lambda x: x + 1).lower(jnp.zeros(4)).compile())
        >>> program.collectives, program.memory.argument
        ((), 16)
    """
    text = compiled.as_text()
    stats = cast(_MemoryStats, compiled.memory_analysis())
    memory = Memory(
        argument=stats.argument_size_in_bytes,
        output=stats.output_size_in_bytes,
        alias=stats.alias_size_in_bytes,
        temp=stats.temp_size_in_bytes,
        peak=_peak(stats),
        host_argument=stats.host_argument_size_in_bytes,
        host_output=stats.host_output_size_in_bytes,
        host_alias=stats.host_alias_size_in_bytes,
        host_temp=stats.host_temp_size_in_bytes,
    )
    module = parse_module(text or "")
    flops = FlopCounter(module)
    devices = [] if mesh is None else list(mesh.devices.flat)
    return Program(
        hlo_text=text or "",
        memory=memory,
        collectives=read_collectives(
            module, None if mesh is None else mesh.shape, [device.process_index for device in devices]
        ),
        flops=flops.computation(module.entry),
        device_kind=devices[0].device_kind if devices else "",
    )
