"""Leaves of the batch that only the loss sees are not rounded to 16 bits, unless the model would compute otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers import build

BATCH = {"x": np.full((8, 4), 1.001, np.float32), "y": np.full((8, 4), 999.0, np.float32)}
SIXTEEN = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "loss_scale": 1}}}


def linear(rngs):
    return nnx.Linear(4, 4, rngs=rngs, kernel_init=nnx.initializers.zeros)


def compared(model, batch):
    """Zero is predicted, so that the loss is the mean size of the targets."""
    predicted = model(batch["x"])
    widths = {name: jnp.float32(jnp.finfo(x.dtype).bits) for name, x in batch.items()}
    return jnp.abs(predicted - batch["y"]).mean(), {**widths, "predicted": jnp.float32(predicted.dtype.itemsize * 8)}


def trained(loss, sections, stage=3, batch=BATCH, **engine):
    with jax.numpy_dtype_promotion("standard"):  # which users have
        return build(stage, batch, model=linear, loss_fn=loss, sections=sections, **engine).train_batch(batch)


@pytest.mark.parametrize(("stage", "precision", "accumulation"), [(0, "bf16", 1), (3, "bf16", 2), (2, "fp16", 1)])
def test_targets_enter_the_loss_as_they_are_and_inputs_do_not(stage, precision, accumulation, caplog):
    caplog.set_level("INFO", "jzero")
    batch = jax.tree.map(lambda x: np.repeat(x, accumulation, 0), BATCH)
    metrics = trained(compared, SIXTEEN[precision], stage, batch, accumulation=accumulation)
    found = [float(metrics[name]) for name in ("loss", "x", "y", "predicted")]
    assert found == [999.0, 16, 32, 16]
    assert f"batch.x enters the loss in {precision}; " in caplog.text
    assert f"batch.y enters the loss as it is, not in {precision}: no weight acts on it." in caplog.text


def test_evaluation_sees_the_same():
    with jax.numpy_dtype_promotion("standard"):
        engine = build(3, BATCH, model=linear, loss_fn=compared, sections=SIXTEEN["bf16"])
        assert float(engine.eval_batch(BATCH)["loss"]) == 999.0


def test_what_strict_promotion_or_the_loss_refuses_stays_rounded():
    engine = build(3, BATCH, model=linear, loss_fn=compared, sections=SIXTEEN["bf16"])  # strict, as all tests are
    assert float(engine.train_batch(BATCH)["loss"]) == 1000.0

    def particular(model, batch):
        predicted = model(batch["x"])
        assert predicted.dtype == batch["y"].dtype
        return jnp.abs(predicted - batch["y"]).mean()

    assert float(trained(particular, SIXTEEN["bf16"])["loss"]) == 1000.0


def test_a_leaf_that_would_widen_the_model_stays_rounded_and_the_others_do_not():
    batch = {**BATCH, "mask": np.full((8, 4), 1 / 3, np.float32)}

    def mixed(model, batch):
        predicted = model(batch["x"])
        mixture = batch["mask"].T @ predicted  # a graph's edges, say: no weight acts on them, but a product has them
        loss = (jnp.abs(predicted - batch["y"]).mean() + mixture.sum()).astype(jnp.float32)
        return loss, {name: jnp.float32(jnp.finfo(x.dtype).bits) for name, x in batch.items()}

    metrics = trained(mixed, SIXTEEN["bf16"], batch=batch)
    assert [float(metrics[name]) for name in ("x", "y", "mask")] == [16, 32, 16]
