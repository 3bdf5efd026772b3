"""How programs are compiled: most of them run for moments only, and those for absent GPUs never."""

import os
from pathlib import Path

import jax
import pytest

from jzero.plan.compiled.topology import COMPILE_ONLY_OPTIONS
from jzero.zero import build
from tests import jax_versions

COMPILED_WELL = ("tests/offload/test_offload.py", "tests/parity/")
"""Where programs run long enough for optimized code to pay, or are compared as only optimized code is equal."""


@pytest.fixture(autouse=True, scope="module")
def optimized_code(request):
    """Switches the compiler's optimizations, which the root's conftest.py leaves out, on where they pay."""
    if request.node.nodeid.startswith(COMPILED_WELL):
        jax.config.update("jax_disable_most_optimizations", False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(build, "compiler_options", lambda *_: jax_versions.OPTIMIZED_FUSIONS)
            yield
        jax.config.update("jax_disable_most_optimizations", True)
    else:
        yield


@pytest.fixture(autouse=True, scope="session")
def kernels_once():
    """Assembles each GPU kernel once, whichever program it is in; all that tests read is the same."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    file = Path(__file__).parents[1] / ".pytest_cache" / f"kernels{worker}"
    file.parent.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in jax_versions.kernel_cache(str(file)).items():
            patch.setitem(COMPILE_ONLY_OPTIONS, name, value)
        yield
