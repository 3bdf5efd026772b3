"""How long a step takes: a range, since no file of figures says how close a program comes to its GPU's peaks.

The two ends of the range reckon with two paces. What differs between two settings of one model is surer than either
time.
"""

import math
from dataclasses import dataclass

from jzero.plan.hardware.figures import Pace

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
