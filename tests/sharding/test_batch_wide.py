"""Losses over pairs of rows are the same on any number of devices."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from jzero.errors import ModelError
from tests.helpers import assert_close, build, host

RNG = np.random.default_rng(0)
BATCH = {name: RNG.standard_normal((32, 16), np.float32) for name in ("image", "text")}
WIDTH = 1032  # so that a kernel of 16 rows is large enough to be divided at every stage


class Towers(nnx.Module):
    def __init__(self, rngs):
        self.image, self.text = (nnx.Linear(16, WIDTH, rngs=rngs) for _ in range(2))


def clip(model, batch):
    """CLIP's loss, as each device sees it."""
    mine, others = {}, {}
    for name in ("image", "text"):
        x = getattr(model, name)(batch[name])
        mine[name] = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
        others[name] = jzero.all_gather(mine[name])
    rows = mine["image"].shape[0]
    target = jzero.axis_index() * rows + jnp.arange(rows)
    losses = [
        optax.softmax_cross_entropy_with_integer_labels(10 * mine[a] @ others[b].T, target)
        for a, b in (("image", "text"), ("text", "image"))
    ]
    return sum(losses).mean(), {"largest": jzero.psum(jnp.float32(rows))}


def trained(stage, n_devices, params=None):
    engine = build(
        stage,
        BATCH,
        model=Towers,
        loss_fn=clip,
        accumulation=2,
        n_devices=n_devices,
        optimizer=optax.sgd(1.0),
        **({} if params is None else {"params": params}),
    )
    before = host(engine.params)
    return before, engine.train_batch(BATCH), host(engine.params)


def test_clip_s_loss_and_its_gradients_are_those_of_one_device():
    start, expected, after = trained(0, 1)
    for stage, n_devices in ((0, 8), (2, 2), (3, 8)):
        _, metrics, got = trained(stage, n_devices, start)
        assert float(metrics["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)
        assert float(metrics["largest"]) == 16  # rows of a micro-batch
        assert_close(got, after, rtol=1e-4, atol=1e-5)


def test_rows_that_are_left_over_have_each_other():
    engines = [build(3, BATCH, model=Towers, loss_fn=clip, n_devices=n, seed=3) for n in (1, 8)]
    loss = lambda engine, rows: float(engine.eval_batch({name: x[rows] for name, x in BATCH.items()})["loss"])
    one, many = (loss(engine, slice(5)) for engine in engines)
    assert many == pytest.approx(one, rel=1e-5)
    # As many rows a device as where devices have different ones, so that JAX has traced such a loss before.
    divided, alone = (loss(engines[0], rows) for rows in (slice(8), slice(8, 9)))
    assert loss(engines[1], slice(8)) == pytest.approx(divided, rel=1e-5)
    assert loss(engines[1], slice(8, 9)) == pytest.approx(alone, abs=1e-6)
    assert loss(engines[1], slice(9)) == pytest.approx((8 * divided + alone) / 9, rel=1e-5)


def test_outside_of_a_step_a_device_is_alone():
    x = jnp.ones((3, 2))
    assert jzero.all_gather({"x": x})["x"] is jzero.psum(x) is x
    assert jzero.axis_index() == 0
    with pytest.raises(ModelError, match=r"got a scalar.*jzero\.psum"):
        jzero.all_gather(jnp.float32(1))
