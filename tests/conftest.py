"""How long compilation may take: most programs here run for moments only."""

import jax
import pytest

QUICKLY_COMPILED = (
    "tests/checkpoint/",
    "tests/cli/test_checkpoints.py",
    "tests/flax/test_model.py",
    "tests/gather/test_forms.py",
    "tests/zero/test_step.py",
)
"""Where CPU programs are compiled quickly rather than well: each of them computes the same every time."""


@pytest.fixture(autouse=True, scope="module")
def quick_compilation(request):
    """Leaves most of XLA's optimizations out; nobody looks at these programs, and their numbers agree as closely."""
    if request.node.nodeid.startswith(QUICKLY_COMPILED):
        jax.config.update("jax_disable_most_optimizations", True)
        yield
        jax.config.update("jax_disable_most_optimizations", False)
    else:
        yield
