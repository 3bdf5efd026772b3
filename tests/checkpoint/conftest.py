"""Programs here are compiled quickly rather than well: each of them computes the same every time."""

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
