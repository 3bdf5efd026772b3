"""How long a step takes: a range, since no file of figures says how close a program comes to its GPU's peaks.

Kernels by the roofline model, collectives by latency and bandwidth, and overlap as the schedule has it: for a compiled
program its own, simulated by `jzero.plan.compiled.timeline`; for the closed form what compiled programs of that stage
do. The two ends of the range reckon with two paces. What differs between two settings of one model is surer than either
time.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from jzero.plan.compiled.collectives import Collective
from jzero.plan.compiled.hlo import Module
from jzero.plan.compiled.timeline import timeline
from jzero.plan.estimate.traced import Message, Work
from jzero.plan.hardware.figures import GpuFigures, Pace

FAST = Pace(products=0.75, memory=0.9, wire=0.9, pcie=0.9, latency=1.0)
"""What well-tuned programs get.

Large products reach 70 to 80 % of the peak that a data sheet promises, because the clock falls under load. A pure copy
gets about 90 % of the memory's bandwidth, NCCL's bandwidth tests about 90 % of a link's. Latencies are those that NCCL
reckons with.
"""

SLOW = Pace(products=0.4, memory=0.6, wire=0.6, pcie=0.6, latency=2.5)
"""What programs get without tuning.

Products of a few thousand rows and columns, kernels that were not timed against others, and collectives that take
multiprocessors from the products beside them come down to 40 %; scattered memory traffic, networks that others use too
and rings over many switches to 60 %. NCCL's protocol for large messages has two to three times the latency per hop.
"""

_HIDDEN_PIPELINED, _HIDDEN = 0.95, 0.7
"""The share of a block's communication that has kernels of that block beside it, with and without `overlap_comm` at
stage 3: in a GPT of eight forms and stages compiled for 64 H100s between 0.9 and 1.0, and between 0.6 and 0.9."""

MIDDLE = Pace(*(math.sqrt(fast * slow) for fast, slow in zip(FAST, SLOW, strict=True)))
"""The geometric mean of both, for the parts of a time."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one training step. Parts are at the `MIDDLE` pace.

    Attributes:
        low: of the whole step, at the `FAST` pace.
        high: at the `SLOW` pace.
        compute: of all kernels.
        wire: of all collectives, one after another.
        exposed: the part of them that nothing is computed beside.
        pcie: of all copies from and to host memory.
        pcie_exposed: the part of them that nothing is computed beside.
    """

    low: float
    high: float
    compute: float
    wire: float
    exposed: float
    pcie: float
    pcie_exposed: float

    @property
    def middle(self) -> float:
        """The whole step at the `MIDDLE` pace."""
        return self.compute + self.exposed + self.pcie_exposed


def compiled_time(module: Module, collectives: Iterable[Collective], gpu: GpuFigures) -> StepTime:
    """Simulates a compiled program's schedule at each pace.

    Args:
        module: the parsed program.
        collectives: its collectives.
        gpu: at its peaks, with the network of the cluster, as `Cluster.figures`.
    """
    collectives = tuple(collectives)
    low, middle, high = (timeline(module, collectives, gpu.at(pace)) for pace in (FAST, MIDDLE, SLOW))
    return StepTime(
        low=low.seconds,
        high=high.seconds,
        compute=middle.busy("compute"),
        wire=middle.busy("wire"),
        exposed=middle.waits.get("wire", 0.0),
        pcie=middle.busy("pcie"),
        pcie_exposed=middle.waits.get("pcie", 0.0),
    )


def closed_form_time(
    work: Work,
    groups: Mapping[tuple[str, ...], tuple[int, int]],
    gpu: GpuFigures,
    *,
    pipelined: bool,
    to_device: int = 0,
    to_host: int = 0,
) -> StepTime:
    """Adds up what a trace says.

    A collective that nothing waits for hides beside the kernels of its own block of code, such as one layer, up to a
    share that was read from compiled programs; so what is sent after a loop over layers, or over micro-batches, hides
    beside nothing in it.

    Args:
        work: what one device does, from `jzero.plan.estimate.traced`.
        groups: for the mesh axes that collectives run along, how many devices take part, and how many of them share a
            node.
        gpu: at its peaks, with the network of the cluster, as `Cluster.figures`.
        pipelined: whether gathers and scatters run beside other layers: stage 3 with `overlap_comm`.
        to_device: bytes that come from host memory in a step.
        to_host: bytes that go back. Copies of both directions count one after another, and nothing beside them: most
            belong to the update, which begins when the products are done.
    """
    low, middle, high = (_parts(work, groups, gpu.at(pace), pipelined) for pace in (FAST, MIDDLE, SLOW))
    copies = [(to_device + to_host) / gpu.at(pace).pcie_bandwidth for pace in (FAST, MIDDLE, SLOW)]
    return StepTime(
        low=low.compute + low.exposed + copies[0],
        high=high.compute + high.exposed + copies[2],
        compute=middle.compute,
        wire=middle.wire,
        exposed=middle.exposed,
        pcie=copies[1],
        pcie_exposed=copies[1],
    )


class _Parts(NamedTuple):
    compute: float
    wire: float
    exposed: float


def _parts(work: Work, groups: Mapping[tuple[str, ...], tuple[int, int]], gpu: GpuFigures, pipelined: bool) -> _Parts:
    compute = [block.times * sum(kernel.seconds(gpu) for kernel in block.kernels) for block in work.blocks]
    wire, awaited = (
        [
            block.times * sum(_message_seconds(m, *groups[m.axes], gpu) for m in block.messages if m.is_awaited is kind)
            for block in work.blocks
        ]
        for kind in (False, True)
    )
    inside = [0.0] * len(compute)  # the most that a block inside has to compute
    for seconds, block in reversed(list(zip(compute, work.blocks, strict=True))):
        around = block.around
        while around is not None:
            inside[around] = max(inside[around], seconds)
            around = work.blocks[around].around
    share = _HIDDEN_PIPELINED if pipelined else _HIDDEN
    hidden = sum(min(share * sent, own) for sent, own, most in zip(wire, compute, inside, strict=True) if own >= most)
    sent = sum(wire) + sum(awaited)
    return _Parts(sum(compute) + work.update.seconds(gpu), sent, sent - hidden)


def _message_seconds(m: Message, size: int, per_node: int, gpu: GpuFigures) -> float:
    more = (m.launches - 1) * gpu.latency(m.kind, size, per_node)
    return more + gpu.collective_seconds(m.kind, m.n_bytes, size, per_node)
