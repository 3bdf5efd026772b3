"""The chunked loss under ZeRO: at every stage what the loss of all logits gives on one device."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from tests import helpers

VOCAB, D, ROWS, T = 64, 16, 32, 11


class Reader(nnx.Module):
    """Hidden states that need a gradient, and an output layer."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(D, D, rngs=rngs)
        self.head = nnx.Linear(D, VOCAB, rngs=rngs)


def chunked(model, batch):
    hidden, head = jnp.tanh(model.inner(batch["x"])), model.head
    options = {"head_layout": "dv", "bias": head.bias[...], "mask": batch["mask"], "chunk_tokens": 8}
    return jzero.cross_entropy(hidden, head.kernel[...], batch["targets"], **options)


def plain(model, batch):
    logits = model.head(jnp.tanh(model.inner(batch["x"])))
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
    return (losses * batch["mask"]).sum() / batch["mask"].sum()


def batch():
    """Rows of 0 to 10 tokens that count: no two devices or micro-batches have equally many."""
    random = np.random.default_rng(0)
    mask = np.arange(T) < np.arange(ROWS)[:, None] * T // ROWS
    x = random.standard_normal((ROWS, T, D), np.float32)
    return {"x": x, "mask": mask.astype(np.float32), "targets": random.integers(0, VOCAB, (ROWS, T), np.int32)}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_is_that_of_one_device_with_all_logits(stage):
    """One step of plain gradient descent at a rate of 1: the parameters tell the gradients to 1e-6."""
    sections = {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}}
    built = helpers.build(stage, batch(), model=Reader, loss_fn=chunked, accumulation=2, sections=sections)
    start = helpers.host(built.params)
    actual = helpers.train(built, [batch()])
    params = jax.tree.map(jnp.asarray, start)
    expected = helpers.train_alone([batch()], params, optax.sgd(1.0), model=Reader, loss_fn=plain)
    helpers.assert_equal_runs(actual, expected, rtol=1e-6, atol=1e-6)
