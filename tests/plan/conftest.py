"""One plan with a compiled program, for all tests of what is read off it and drawn of it."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jzero.plan import plan

LAYERS, D, ROWS = 3, 256, 512
LAYER = 2 * D * 4 * D
"""Parameters of a layer."""


class Stack(nnx.Module):
    """Layers that a loop walks over."""

    def __init__(self, rngs):
        make = lambda *shape: nnx.Param(0.02 * jax.random.normal(rngs.params(), (LAYERS, *shape)))
        self.up, self.down = make(D, 4 * D), make(4 * D, D)

    def __call__(self, x):
        layer = lambda x, w: (x + jnp.tanh(x @ w[0].astype(x.dtype)) @ w[1].astype(x.dtype), None)
        return jax.lax.scan(layer, x, (self.up[...], self.down[...]))[0]


@pytest.fixture(scope="session")
def planned():
    return plan(
        model=Stack,
        loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
        config={"train_micro_batch_size_per_gpu": ROWS, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW"}},
        sample_batch=jax.ShapeDtypeStruct((8 * ROWS, D), jnp.bfloat16),
        stages=(3,),
        hidden_size=D,
        compiled="recommended",
        memory_use=True,
    )


@pytest.fixture(scope="session")
def compiled_row(planned):
    return next(row for row in planned.rows if row.compiled)
