"""How long a program's communication takes beside its matrix products, loop by loop, on a GPU of known speed.

A share of overlapped bytes says that some product runs beside a collective, not that it lasts as long. Here both get a
duration: bytes over the bandwidth of the slowest link, flops over the peak rate, neither with what else it takes (for
that see `jzero.plan.estimate.step_time`). Products hide communication second by second, each second at most once, as
if all collectives shared one link; what is left is exposed.
"""

import dataclasses
import heapq
from collections import defaultdict
from collections.abc import Iterable

from jzero.plan.compiled.collectives import Collective, between_start_and_done, overlapped_share
from jzero.plan.compiled.flops import FlopCounter
from jzero.plan.compiled.hlo import Instruction, Module
from jzero.plan.compiled.loops import executions, innermost_loops, trip_count
from jzero.plan.hardware.figures import GpuFigures


@dataclasses.dataclass(frozen=True)
class LoopTraffic:
    """One loop, without the loops inside it; or the code outside of all loops. All of it per device and program run.

    Attributes:
        loop: name of its body; None outside of loops.
        op_name: JAX's name stack of the loop.
        runs: rounds in all, those of enclosing loops multiplied in; 1 outside.
        runs_known: False where the length depends on data; it then counts as one round.
        gathered_bytes: sent by all-gathers.
        scattered_bytes: sent by reduce-scatters.
        reduced_bytes: sent by all-reduces.
        other_bytes: sent by all other collectives.
        overlapped_share: share of the payload bytes that travel beside matrix products; 1.0 where nothing travels.
        communication_seconds: of all collectives, one after another.
        product_seconds: of all matrix products.
        beside_seconds: of the products scheduled beside collectives of this loop, those of inner loops included.
        exposed_seconds: the part of `communication_seconds` that no product hides.
    """

    loop: str | None
    op_name: str
    runs: int
    runs_known: bool
    gathered_bytes: int
    scattered_bytes: int
    reduced_bytes: int
    other_bytes: int
    overlapped_share: float
    communication_seconds: float
    product_seconds: float
    beside_seconds: float
    exposed_seconds: float

    @property
    def wire_bytes(self) -> int:
        """Bytes one device sends."""
        return self.gathered_bytes + self.scattered_bytes + self.reduced_bytes + self.other_bytes


def loop_traffic(module: Module, collectives: Iterable[Collective], gpu: GpuFigures) -> tuple[LoopTraffic, ...]:
    """Sums up each loop of a program that sends or multiplies anything.

    Args:
        module: the parsed program.
        collectives: its collectives, from `jzero.plan.compiled.collectives.read_collectives`.
        gpu: the speeds to reckon with.

    Returns:
        The code outside of loops first, then the loops in the order they are printed.
    """
    runs, loop_of = executions(module), innermost_loops(module)
    by_computation: dict[str, list[Collective]] = defaultdict(list)
    for collective in collectives:
        by_computation[collective.computation].append(collective)
    schedules = _Schedules(module, by_computation, gpu)
    members: dict[str | None, list[str]] = {None: []}
    for name in module.computations:
        if name in loop_of and runs[name][0]:
            members.setdefault(loop_of[name], []).append(name)
    stacks = {
        (line.attribute("body") or "").lstrip("%"): line.op_name
        for computation in module.computations.values()
        for line in computation.instructions.values()
        if line.opcode == "while"
    }
    found = []
    for loop, names in members.items():
        inside = [c for name in names for c in by_computation[name]]
        times = [(runs[name][0], schedules.of(name)) for name in names]
        n_runs, runs_known = runs[loop or module.entry]
        entry = LoopTraffic(
            loop=loop,
            op_name=stacks.get(loop or "", ""),
            runs=n_runs,
            runs_known=runs_known,
            gathered_bytes=_sent(inside, "all-gather"),
            scattered_bytes=_sent(inside, "reduce-scatter"),
            reduced_bytes=_sent(inside, "all-reduce"),
            other_bytes=_sent([c for c in inside if c.kind not in ("all-gather", "reduce-scatter", "all-reduce")]),
            overlapped_share=overlapped_share(inside),
            communication_seconds=sum(n * time.communication for n, time in times),
            product_seconds=sum(n * time.own_products for n, time in times),
            beside_seconds=sum(n * time.beside for n, time in times),
            exposed_seconds=sum(n * time.exposed for n, time in times),
        )
        if loop is None or entry.wire_bytes or entry.product_seconds:
            found.append(entry)
    return tuple(found)


def _sent(collectives: Iterable[Collective], kind: str | None = None) -> int:
    return sum(c.wire_bytes * c.executions for c in collectives if kind in (None, c.kind))


@dataclasses.dataclass
class _Times:
    """Seconds of running one computation once.

    Collectives and hiding are those of the computation itself; `products` are all it calls too, and `free` those of
    them that hide nothing yet.
    """

    communication: float = 0.0
    exposed: float = 0.0
    beside: float = 0.0
    own_products: float = 0.0
    products: float = 0.0
    free: float = 0.0


class _Schedules:
    """The `_Times` of each computation, remembered, because inner loops are asked for by outer ones."""

    def __init__(self, module: Module, collectives: dict[str, list[Collective]], gpu: GpuFigures):
        self._module, self._collectives, self._gpu = module, collectives, gpu
        self._flops = FlopCounter(module)
        self._known: dict[str, _Times] = {}

    def of(self, name: str) -> _Times:
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> _Times:
        """Walks the schedule and gives each product to the collective in flight that must be done first.

        No other choice hides more: whatever could take the product later can take a later one too.
        """
        computation, times = self._module.computations[name], _Times()
        position = {line: i for i, line in enumerate(computation.instructions)}
        seconds = self._seconds(name)
        in_flight: list[tuple[int, float]] = []  # a heap of (last position beside it, seconds not hidden yet)
        last_beside = -1
        for i, line in enumerate(computation.instructions.values()):
            if line.name in seconds:
                collective, duration = seconds[line.name]
                times.communication += duration
                times.exposed += duration
                beside = list(between_start_and_done(computation, line)) if collective.asynchronous else []
                if beside and duration:
                    last = position[beside[-1].name]
                    heapq.heappush(in_flight, (last, duration))
                    last_beside = max(last_beside, last)
            products, free = self._products(name, line)
            times.own_products += 0.0 if line.called else products
            times.products += products
            times.beside += products if i <= last_beside else 0.0
            while in_flight and in_flight[0][0] < i:
                heapq.heappop(in_flight)
            while in_flight and free > 0:
                last, left = heapq.heappop(in_flight)
                hidden = min(left, free)
                free -= hidden
                times.exposed -= hidden
                if left > hidden:
                    heapq.heappush(in_flight, (last, left - hidden))
            times.free += free
        times.exposed = max(0.0, times.exposed)  # differences of floats
        return times

    def _seconds(self, computation: str) -> dict[str, tuple[Collective, float]]:
        """Instruction -> its collective and duration; the arrays of one tuple travel together."""
        found: dict[str, tuple[Collective, float]] = {}
        for c in self._collectives.get(computation, ()):
            _, before = found.get(c.name, (c, 0.0))
            found[c.name] = c, before + c.wire_bytes / self._gpu.bandwidth(c.kind, c.group_size, c.per_node)
        return found

    def _products(self, computation: str, line: Instruction) -> tuple[float, float]:
        """Seconds of an instruction's products, and of those that hide nothing inside the computations it calls."""
        if not line.called:
            seconds = self._gpu.product_seconds(self._flops.by_dtype(computation, line))
            return seconds, seconds
        trips = (trip_count(self._module, computation, line) or 1) if line.opcode == "while" else 1
        inner = [self.of(callee) for callee in line.called]
        return trips * sum(times.products for times in inner), trips * sum(times.free for times in inner)
