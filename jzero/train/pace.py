"""How fast a run is: seconds of a step, tokens a second, and what share of the devices' speed the model gets."""

import logging
import time
from dataclasses import dataclass

from jzero.engine import Engine
from jzero.observe.arithmetic import model_flops
from jzero.observe.utilisation import peak_flops, speed


@dataclass
class Pace:
    """The time between the ends of steps, which is all that a clock on the host can tell of them.

    Attributes:
        engine: that takes the steps.
        per_step: tokens, or samples, of a step.
        unit: "tokens" or "samples".
        seconds: of a step, smoothed; 0 before the second one.
    """

    engine: Engine
    per_step: int
    unit: str
    seconds: float = 0.0
    _last_end: float | None = None
    _flops: int | None = None

    def restart(self) -> None:
        """Leaves the next step out, whose time would count what came between: an evaluation, a save."""
        self._last_end = None

    def step_ended(self) -> dict[str, float]:
        """Takes the time at the end of a step.

        Returns:
            `step_seconds`, and smoothed `tokens_per_second`, `model_tflops_per_device`, and `mfu` on GPUs whose peak
            jzero knows; nothing after the first step and after `restart`.
        """
        began, self._last_end = self._last_end, time.monotonic()
        if began is None:
            return {}
        took = self._last_end - began
        self.seconds = 0.9 * self.seconds + 0.1 * took if self.seconds else took
        return {"step_seconds": took, f"{self.unit}_per_second": self.per_step / self.seconds, **self._of_peak()}

    def _of_peak(self) -> dict[str, float]:
        mesh = self.engine.mesh
        if self._flops is None:
            self._flops = self._counted()
        if not self._flops:
            return {}
        peak = peak_flops(mesh.devices.flat[0].device_kind, self.engine.config.precision)
        found = speed(self._flops, self.seconds, mesh.size, peak)
        mfu = {} if found.mfu is None else {"mfu": found.mfu}
        return {"model_tflops_per_device": found.tflops_per_device, **mfu}

    def _counted(self) -> int:
        try:
            return model_flops(self.engine.functional).step
        except Exception as error:  # the loss is people's own code, traced once more; no run ends for want of a figure
            logging.getLogger("jzero").warning("the model's flops cannot be counted: %s", str(error).splitlines()[0])
            return 0
