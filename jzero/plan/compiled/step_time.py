"""How long a compiled step takes: kernels by the roofline model, collectives by latency and bandwidth, as scheduled."""

from collections.abc import Iterable

from jzero.plan.compiled.collectives import Collective
from jzero.plan.compiled.hlo import Module
from jzero.plan.compiled.timeline import simulate
from jzero.plan.hardware.figures import GpuFigures
from jzero.plan.hardware.pace import FAST, MIDDLE, SLOW, StepTime


def compiled_time(module: Module, collectives: Iterable[Collective], gpu: GpuFigures) -> StepTime:
    """Simulates a compiled program's schedule at each pace.

    Args:
        module: the parsed program.
        collectives: its collectives.
        gpu: at its peaks, with the network of the cluster, as `Cluster.figures`.
    """
    collectives = tuple(collectives)
    low, middle, high = (simulate(module, collectives, gpu.at(pace)) for pace in (FAST, MIDDLE, SLOW))
    return StepTime(
        low=low.seconds,
        high=high.seconds,
        compute=middle.busy("compute"),
        wire=middle.busy("wire"),
        exposed=middle.waits.get("wire", 0.0),
        pcie=middle.busy("pcie"),
        pcie_exposed=middle.waits.get("pcie", 0.0),
    )
