"""A step whose gradients are not finite changes nothing but the counts, in every dtype and at every stage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jzero.errors import LossScaleError
from tests.helpers import batches, build, host, squared_error

WIDTH = 1032  # so that a kernel of 16 rows is large enough to be divided at every stage
GOOD, ALSO_GOOD = batches(2, 16, 16, WIDTH)
BAD = {**GOOD, "x": np.where(np.arange(16)[:, None] == 11, np.float32(np.nan), GOOD["x"])}
HUGE = {**GOOD, "x": np.where(np.arange(16)[:, None] == 3, np.float32(np.inf), GOOD["x"])}
PRECISIONS = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}},
}


class Counting(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(16, WIDTH, rngs=rngs)
        self.mean = nnx.BatchStat(jnp.zeros(WIDTH, jnp.float32))
        self.calls = nnx.Variable(jnp.asarray(0, jnp.int32))

    def __call__(self, x):
        y = self.linear(x)
        self.mean[...] = y.mean(0).astype(jnp.float32)
        self.calls[...] += jnp.asarray(1, jnp.int32)
        return y


def lasting(engine):
    state = engine.state
    return host((state.params, state.opt_state, state.model_state, state.applied_steps))


def assert_same(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_bad_step_leaves_everything_as_it_was(stage, precision):
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.1, "warmup_num_steps": 10, "warmup_type": "linear"}}
    sections = {**PRECISIONS[precision], "scheduler": scheduler, "gradient_clipping": 1.0}
    engine = build(stage, GOOD, model=Counting, sections=sections)
    engine.train_batch(GOOD)
    before = lasting(engine)
    assert before[2]["calls"] == before[3] == 1
    rates = []
    for i, batch in enumerate((BAD, HUGE)):
        metrics = engine.train_batch(batch)
        assert bool(metrics["overflow"])
        assert not np.isfinite(float(metrics["grad_norm"]))
        assert (int(metrics["skipped_steps"]), int(metrics["applied_steps"])) == (i + 1, 1)
        rates.append(float(metrics["learning_rate"]))
        assert_same(lasting(engine), before)
        assert int(engine.state.step) == i + 2
    scales = {"fp16": 64.0}
    assert float(engine.state.loss_scale.scale) == scales.get(precision, 1.0)

    after = engine.train_batch(ALSO_GOOD)
    assert {*rates} == {float(after["learning_rate"])}
    assert float(engine.train_batch(GOOD)["learning_rate"]) > rates[0]
    assert (int(after["skipped_steps"]), int(after["applied_steps"]), bool(after["overflow"])) == (2, 2, False)
    if (stage, precision) == (3, "fp32"):
        spared = build(stage, GOOD, model=Counting, sections=sections)
        for batch in (GOOD, ALSO_GOOD, GOOD):
            spared.train_batch(batch)
        assert_same(lasting(engine), lasting(spared))


def test_one_bad_micro_batch_spoils_the_step():
    engine = build(2, GOOD, model=Counting, accumulation=2)
    before = lasting(engine)
    assert bool(engine.train_batch(BAD)["overflow"])
    assert_same(lasting(engine), before)


def test_fp16_gradients_that_no_scale_can_save_end_the_run():
    fp16 = {"enabled": True, "initial_scale_power": 1, "hysteresis": 1, "min_loss_scale": 1}
    engine = build(1, GOOD, model=Counting, sections={"fp16": fp16})
    assert float(engine.train_batch(BAD)["loss_scale"]) == 2
    assert float(engine.train_batch(BAD)["loss_scale"]) == 1  # an overflow at the minimum
    message = (
        r"fp16 gradients overflow at the smallest loss scale \(1, fp16.min_loss_scale\) at step 2: the model diverges"
    )
    for _ in range(2):
        with pytest.raises(LossScaleError, match=message):
            engine.train_batch(GOOD)
    assert np.isfinite(float(engine.eval_batch(GOOD)["loss"]))


def test_gradients_beyond_fp16_overflow_only_in_fp16():
    loss = lambda model, batch: squared_error(model, batch) * 1e6
    overflows = {}
    for name, sections in PRECISIONS.items():
        engine = build(1, GOOD, model=Counting, loss_fn=loss, sections=sections)
        overflows[name] = bool(engine.train_batch(GOOD)["overflow"])
    assert overflows == {"fp32": False, "bf16": False, "fp16": True}
