"""How long a step takes by the closed form: a range between two paces, see `jzero.plan.hardware.pace`.

Kernels by the roofline model, collectives by latency and bandwidth, and overlap as compiled programs of that stage have
it; `jzero.plan.compiled.step_time` simulates the schedule of a compiled program itself.
"""

from collections.abc import Mapping
from typing import NamedTuple

from jzero.plan.estimate.traced import Message, Work
from jzero.plan.hardware.figures import GpuFigures
from jzero.plan.hardware.pace import FAST, MIDDLE, SLOW, StepTime

_HIDDEN_PIPELINED, _HIDDEN = 0.95, 0.7
"""The share of a block's communication that has kernels of that block beside it, with and without `overlap_comm` at
stage 3: in a GPT of eight forms and stages compiled for 64 H100s between 0.9 and 1.0, and between 0.6 and 0.9."""


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
