"""`jzero.Mean`: a loss over a varying number of tokens is averaged by weight, as if one device saw the whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from tests.helpers import assert_close, batches, build, host

WIDTH = 1032  # so that a kernel of 16 rows is large enough to be divided at every stage
BATCH = batches(1, 32, 16, WIDTH)[0]
BATCH["weight"] = np.random.default_rng(0).integers(0, 9, 32).astype(np.float32)
BATCH["weight"][8:12] = 0  # with one micro-batch the third device has nothing to count
BATCH["weight"][16:24] = 0  # with four, a whole micro-batch has nothing
NOTHING = {**BATCH, "weight": np.zeros(32, np.float32)}


def linear(rngs):
    return nnx.Linear(16, WIDTH, rngs=rngs)


def weighted(model, batch):
    errors = ((model(batch["x"]) - batch["y"]).astype(jnp.float32) ** 2).mean(-1)
    weight = batch["weight"].astype(jnp.float32)
    close = jzero.Mean((errors < 2).astype(jnp.float32).sum(), jnp.asarray(errors.size, jnp.float32))
    here = (errors * weight).sum() / weight.sum()  # not a number where nothing counts
    metrics = {"close": close, "rows": jzero.Mean(errors.mean()), "like_the_loss": here}
    return jzero.Mean((errors * weight).sum(), weight.sum()), metrics


def one_device(params):
    def loss(p):
        errors = ((BATCH["x"] @ p["kernel"] + p["bias"] - BATCH["y"]) ** 2).mean(-1)
        return (errors * BATCH["weight"]).sum() / BATCH["weight"].sum(), errors

    (value, errors), grads = jax.value_and_grad(loss, has_aux=True)(params)
    return float(value), float((errors < 2).mean()), float(errors.mean()), grads


@pytest.mark.parametrize("accumulation", [1, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_loss_and_gradient_are_the_weighted_mean(stage, accumulation):
    engine = build(stage, BATCH, model=linear, loss_fn=weighted, accumulation=accumulation, optimizer=optax.sgd(1.0))
    before = host(engine.params)
    loss, close, rows, grads = one_device(before)
    assert float(engine.eval_batch(BATCH)["loss"]) == pytest.approx(loss, rel=1e-6)
    metrics = engine.train_batch(BATCH)
    assert float(metrics["loss"]) == pytest.approx(loss, rel=1e-6)
    assert float(metrics["close"]) == pytest.approx(close, abs=1e-6)
    assert float(metrics["rows"]) == pytest.approx(rows, rel=1e-6)
    assert float(metrics["like_the_loss"]) == pytest.approx(loss, rel=1e-6)
    assert float(metrics["grad_norm"]) == pytest.approx(float(optax.tree.norm(grads)), rel=1e-5)
    moved = jax.tree.map(lambda a, b: a - b, before, host(engine.params))
    assert_close(moved, host(grads), rtol=1e-4, atol=1e-6)

    still = host(engine.params)
    metrics = engine.train_batch(NOTHING)
    assert (float(metrics["loss"]), float(metrics["grad_norm"]), bool(metrics["overflow"])) == (0.0, 0.0, False)
    assert_close(host(engine.params), still, rtol=0, atol=0)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_sum_over_many_tokens_does_not_overflow_fp16(stage):
    heavy = {**BATCH, "weight": BATCH["weight"] * 1000}
    sections = {"fp16": {"enabled": True, "initial_scale_power": 12}}
    engine = build(stage, heavy, model=linear, loss_fn=weighted, optimizer=optax.sgd(1.0), sections=sections)
    loss, _, _, grads = one_device(host(engine.params))
    metrics = engine.train_batch(heavy)
    assert not bool(metrics["overflow"])
    assert float(metrics["loss"]) == pytest.approx(loss, rel=1e-2)
    assert float(metrics["grad_norm"]) == pytest.approx(float(optax.tree.norm(grads)), rel=1e-2)
