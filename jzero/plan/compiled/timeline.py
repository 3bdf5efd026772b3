"""When each kernel, collective and copy of a compiled program runs, by simulating its schedule on a GPU of known speed.

Kernels run one after another in the order of the schedule. A collective or copy that has a start and a done runs beside
whatever stands between the two, after those of its lane that started before it; the done waits for it.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal

from jzero.plan.compiled.collectives import Collective
from jzero.plan.compiled.hlo import Instruction, Module
from jzero.plan.compiled.kernels import KernelReader
from jzero.plan.compiled.loops import trip_count
from jzero.plan.hardware.figures import GpuFigures
from jzero.plan.hardware.kernel import Kernel

Lane = Literal["compute", "wire", "pcie"]


@dataclass(frozen=True)
class Loop:
    """A loop whose every round looks alike.

    Attributes:
        name: JAX's name stack, or the name of the loop's body where XLA recorded none.
        start: of the first round, in seconds since the step began; for a loop inside another, in the first round of
            that.
        seconds: of one round.
        rounds: how many there are, one after another.
    """

    name: str
    start: float
    seconds: float
    rounds: int


@dataclass(frozen=True)
class Span:
    """A kernel, collective or copy.

    Attributes:
        lane: "compute" for kernels, "wire" for collectives, "pcie" for copies from and to host memory.
        kind: one of `jzero.plan.KINDS`; "product" where matrix products or convolutions are in it, "kernel" where not;
            "to device" or "to host".
        name: of the instruction.
        op_name: JAX's name stack, empty where XLA recorded none.
        start: in seconds since the step began; of the first time, where it is in a loop.
        seconds: of one run.
        loops: the loops it is in, the outermost first.
    """

    lane: Lane
    kind: str
    name: str
    op_name: str
    start: float
    seconds: float
    loops: tuple[Loop, ...] = ()

    @property
    def runs(self) -> int:
        """How often it runs in a step."""
        return math.prod(loop.rounds for loop in self.loops)

    def starts(self) -> Iterator[float]:
        """When it starts, each time.

        Example:
            >>> layers = Loop("layers", start=1.0, seconds=0.25, rounds=3)
            >>> list(Span("compute", "product", "dot.1", "", start=1.0, seconds=0.1, loops=(layers,)).starts())
            [1.0, 1.25, 1.5]
        """
        for rounds in product(*(range(loop.rounds) for loop in self.loops)):
            yield self.start + sum(i * loop.seconds for i, loop in zip(rounds, self.loops, strict=True))


@dataclass(frozen=True)
class Timeline:
    """One step of a program on one GPU.

    Attributes:
        spans: what runs, in the order of the schedule.
        seconds: of the whole step.
        waits: seconds in which no kernel runs, "wire" or "pcie", whichever is waited for.
    """

    spans: tuple[Span, ...]
    seconds: float
    waits: Mapping[Lane, float]

    @property
    def loops(self) -> tuple[tuple[Loop, ...], ...]:
        """The loops with spans in them, each with those around it, the outermost first."""
        paths = (span.loops[:depth] for span in self.spans for depth in range(1, len(span.loops) + 1))
        return tuple(dict.fromkeys(paths))

    def busy(self, lane: Lane) -> float:
        """Seconds that all spans of a lane take, one after another."""
        return sum(span.runs * span.seconds for span in self.spans if span.lane == lane)


def simulate(module: Module, collectives: Iterable[Collective], gpu: GpuFigures) -> Timeline:
    """Simulates one step; `Program.timeline` calls it with the program's own.

    Args:
        module: the parsed program, with a schedule.
        collectives: its collectives, from `jzero.plan.compiled.collectives.read_collectives`.
        gpu: the rates to reckon with: peaks, or what is left of them (`GpuFigures.at`).

    Returns:
        Its spans, and how long it takes. Loops of unknown length count as one round; of a branch, the longest.
    """
    by_site: dict[tuple[str, str], list[Collective]] = defaultdict(list)
    for c in collectives:
        by_site[c.computation, c.name].append(c)
    simulation = _Simulation(module, by_site, gpu)
    clock = _Clock()
    spans = simulation.run(module.entry, clock)
    return Timeline(tuple(spans), clock.now, clock.waits)


@dataclass
class _Clock:
    """The time, when each queue will have done what was put into it, and what was waited for so far."""

    now: float = 0.0
    free: dict[str, float] = field(default_factory=lambda: {"wire": 0.0, "to device": 0.0, "to host": 0.0})
    waits: dict[Lane, float] = field(default_factory=lambda: {"wire": 0.0, "pcie": 0.0})

    def queue(self, name: str, seconds: float) -> float:
        """Puts something into a queue; returns when it will start."""
        start = max(self.now, self.free[name])
        self.free[name] = start + seconds
        return start

    def wait(self, lane: Lane, until: float) -> None:
        """Nothing is computed until then."""
        self.waits[lane] += max(0.0, until - self.now)
        self.now = max(self.now, until)

    def backlog(self) -> tuple[float, ...]:
        """Seconds of work in each queue."""
        return tuple(max(0.0, free - self.now) for free in self.free.values())

    def skip(self, rounds: int, seconds: float, waits: Mapping[Lane, float]) -> None:
        """Lets so many more rounds pass that look like one that took these seconds, and waited so long."""
        self.now += rounds * seconds
        self.free = {name: free + rounds * seconds for name, free in self.free.items()}
        self.waits = {lane: wait + rounds * waits[lane] for lane, wait in self.waits.items()}


class _Simulation:
    """Runs computations, and remembers what their instructions do."""

    def __init__(self, module: Module, by_site: Mapping[tuple[str, str], list[Collective]], gpu: GpuFigures):
        self._module, self._by_site, self._gpu = module, by_site, gpu
        self._reader = KernelReader(module)
        self._kernels: dict[tuple[str, str], Kernel | None] = {}

    def run(self, name: str, clock: _Clock) -> list[Span]:
        """Runs a computation once, and moves the clock on."""
        spans: list[Span] = []
        ends: dict[str, tuple[Lane, float]] = {}  # what is in flight
        for line in self._module.computations[name].instructions.values():
            if line.opcode == "while":
                spans += self._loop(name, line, clock)
            elif line.opcode in ("conditional", "call"):
                spans += self._longest(line, clock)
            elif line.opcode.endswith(("-done", "-update")):
                in_flight = next((ends[o] for o in line.operands if o in ends), None)
                if in_flight and line.opcode.endswith("-update"):
                    ends[line.name] = in_flight
                elif in_flight:
                    clock.wait(*in_flight)
            elif (span := self._span(name, line, clock)) is not None:
                spans.append(span)
                end = span.start + span.seconds
                if span.lane == "compute":
                    clock.now = end
                elif self._is_asynchronous(name, line):
                    ends[line.name] = span.lane, end
                else:
                    clock.wait(span.lane, end)
        return spans

    def _is_asynchronous(self, computation: str, line: Instruction) -> bool:
        sent = self._by_site.get((computation, line.name))
        return sent[0].asynchronous if sent else line.opcode.endswith("-start")

    def _span(self, computation: str, line: Instruction, clock: _Clock) -> Span | None:
        """What an instruction runs, put into its lane."""
        if sent := self._by_site.get((computation, line.name)):
            first = sent[0]
            n_bytes = sum(c.wire_bytes for c in sent)  # the arrays of one tuple travel together
            seconds = self._gpu.collective_seconds(first.kind, n_bytes, first.group_size, first.per_node)
            return Span("wire", first.kind, line.name, first.op_name, clock.queue("wire", seconds), seconds)
        kernel = self._kernel(computation, line)
        if kernel is None:
            return None
        seconds = kernel.seconds(self._gpu)
        if kernel.to_device or kernel.to_host:
            kind = "to device" if kernel.to_device >= kernel.to_host else "to host"
            return Span("pcie", kind, line.name, line.op_name, clock.queue(kind, seconds), seconds)
        return Span("compute", "product" if kernel.flops else "kernel", line.name, line.op_name, clock.now, seconds)

    def _kernel(self, computation: str, line: Instruction) -> Kernel | None:
        key = computation, line.name
        if key not in self._kernels:
            self._kernels[key] = self._reader.kernel(computation, line)
        return self._kernels[key]

    def _loop(self, computation: str, line: Instruction, clock: _Clock) -> list[Span]:
        """All rounds: one by one as long as they differ, because a queue was not empty, then the rest at once."""
        body = (line.attribute("body") or "").lstrip("%")
        left = trip_count(self._module, computation, line)
        left = 1 if left is None else left
        spans: list[Span] = []
        while left > 0:
            start, backlog, waits = clock.now, clock.backlog(), dict(clock.waits)
            inside = self.run(body, clock)
            seconds = clock.now - start
            rounds = left if clock.backlog() == backlog else 1
            clock.skip(rounds - 1, seconds, {lane: clock.waits[lane] - waits[lane] for lane in clock.waits})
            loop = Loop(line.op_name or body, start, seconds, rounds)
            spans += [replace(span, loops=(loop, *span.loops)) for span in inside]
            left -= rounds
        return spans

    def _longest(self, line: Instruction, clock: _Clock) -> list[Span]:
        """A call, or of a conditional's branches the longest."""
        tried = []
        for callee in line.called:
            fork = _Clock(clock.now, dict(clock.free), dict(clock.waits))
            tried.append((self.run(callee, fork), fork))
        if not tried:
            return []
        spans, fork = max(tried, key=lambda run: run[1].now)
        vars(clock).update(vars(fork))
        return spans
