"""How well programs are compiled: most of them run for moments only."""

import jax
import pytest

COMPILED_WELL = ("tests/parity/",)
"""Where programs run long enough for optimized code to pay."""


@pytest.fixture(autouse=True, scope="module")
def optimized_code(request):
    """Switches the compiler's optimizations, which the root's conftest.py leaves out, on where they pay."""
    if request.node.nodeid.startswith(COMPILED_WELL):
        jax.config.update("jax_disable_most_optimizations", False)
        yield
        jax.config.update("jax_disable_most_optimizations", True)
    else:
        yield
