"""An engine's state whose arrays are all in memory: nothing but the compiled functions is needed."""

import warnings

import numpy as np

from jzero.base.types import Batch, Metrics, Params, PyTree
from jzero.errors import OffloadError
from jzero.offload.interface import Run


class ResidentStore:
    """A `jzero.offload.interface.StateStore` of arrays in device and host memory.

    Args:
        run: the compiled functions.
    """

    def __init__(self, run: Run):
        self._run = run

    def init(self, seed: np.uint32, params: Params | None = None) -> PyTree:
        return self._run.init(seed) if params is None else self._run.init(seed, params)

    def init_over(self, seed: np.uint32, params: Params) -> PyTree:
        with warnings.catch_warnings():  # of memory that cannot be taken, as that of padded leaves
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            return self._run.init_over(seed, params)

    def step(self, state: PyTree, batch: Batch) -> tuple[PyTree, Metrics]:
        out = self._run.program(state, batch)
        return out.state, out.metrics

    def whole(self, state: PyTree) -> PyTree:
        return state

    def replace(self, whole: PyTree) -> PyTree:
        return whole

    def recover(self, state: PyTree) -> PyTree:
        raise OffloadError("nothing is kept on NVMe (zero_optimization.offload_optimizer); load a checkpoint.")
