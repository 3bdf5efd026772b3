"""Programs for GPUs are read here, never run: their kernels need no optimization."""

import pytest

from jzero.plan.compiled.topology import COMPILE_ONLY_OPTIONS


@pytest.fixture(autouse=True, scope="module")
def plain_kernels():
    """Leaves LLVM's optimizations out, which come after all that is read: the scheduled HLO is the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(COMPILE_ONLY_OPTIONS, "xla_backend_optimization_level", 0)
        patch.setitem(COMPILE_ONLY_OPTIONS, "xla_llvm_disable_expensive_passes", True)
        yield
