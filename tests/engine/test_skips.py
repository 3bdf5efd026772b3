"""A step whose gradients are not finite changes nothing but the counts, in every dtype and at every stage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jzero.errors import LossScaleError, SkippedStepsError
from jzero.jaxpr import run_replacing, trace
from jzero.optim.apply import keep
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
        named = f"step {i + 2} was skipped: the gradient of linear.bias is not finite, and the loss is "
        assert engine.why_skipped(metrics) == named + str(float(metrics["loss"]))
        assert (int(metrics["skipped_steps"]), int(metrics["applied_steps"])) == (i + 1, 1)
        rates.append(float(metrics["learning_rate"]))
        assert_same(lasting(engine), before)
        assert int(engine.state.step) == i + 2
    scales = {"fp16": 64.0}
    assert float(engine.state.loss_scale.scale) == scales.get(precision, 1.0)

    after = engine.train_batch(ALSO_GOOD)
    assert engine.why_skipped(after) is None
    assert float(after["skipped_share"]) == 0.5
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


class Roots(nnx.Module):
    """The gradient of a parameter is 0 / 0 where its entry of `z` is 0, and the loss is finite all the same."""

    def __init__(self, rngs):
        self.a = nnx.Param(jnp.ones((16, WIDTH), jnp.float32))
        self.b = nnx.Param(jnp.ones(5, jnp.float32))
        self.c = nnx.Param(jnp.ones((3, 16, WIDTH), jnp.float32))

    def __call__(self, z):
        return sum(jnp.sqrt(jnp.square(p[...]).mean() * z[:, i].mean()) for i, p in enumerate((self.a, self.b, self.c)))


def roots(**spoilt):
    """A batch of four micro-batches of eight rows, with zeros in the columns and micro-batches named."""
    z = np.ones((4, 8, 3), np.float32)
    for name, micro_batches in spoilt.items():
        z[micro_batches, 5, "abc".index(name)] = 0  # one device's row
    return {"z": z.reshape(32, 3)}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_first_bad_parameter_and_the_first_bad_micro_batch_are_named(stage):
    loss = lambda model, batch: model(batch["z"])
    frozen_b = lambda name: name != "b"
    engine = build(stage, roots(), model=Roots, loss_fn=loss, accumulation=4, trainable=frozen_b)
    for spoilt, name, micro_batch in [
        ({"a": [2]}, "a", 3),
        ({"c": [0, 3]}, "c", 1),
        ({"a": [3], "c": [1]}, "a", 2),
        ({"b": [1]}, None, None),
    ]:
        metrics = engine.train_batch(roots(**spoilt))
        assert np.isfinite(float(metrics["loss"]))
        why = f"the gradient of {name} is not finite, first in micro-batch {micro_batch} of 4"
        step = int(engine.state.step)
        assert engine.why_skipped(metrics) == (f"step {step} was skipped: {why}" if name else None)
    assert (int(metrics["nonfinite_leaf"]), int(metrics["nonfinite_micro_batch"])) == (-1, -1)
    assert float(metrics["skipped_share"]) == 0.75


def test_a_norm_beyond_fp32_of_gradients_within_it_has_no_culprit():
    loss = lambda model, batch: model.a[...].sum() * batch["s"].mean() + model.c[...].sum() * batch["s"].mean()
    batch = {"s": np.full(8, 7.7e16, np.float32)}
    engine = build(2, batch, model=Roots, loss_fn=loss)
    metrics = engine.train_batch(batch)
    assert engine.why_skipped(metrics) == "step 1 was skipped: the norm of all gradients is not finite"


def test_fp16_gradients_that_no_scale_can_save_end_the_run():
    fp16 = {"enabled": True, "initial_scale_power": 1, "hysteresis": 1, "min_loss_scale": 1}
    engine = build(1, GOOD, model=Counting, sections={"fp16": fp16})
    assert float(engine.train_batch(BAD)["loss_scale"]) == 2
    assert float(engine.train_batch(BAD)["loss_scale"]) == 1  # an overflow at the minimum
    message = (
        r"fp16 gradients overflow at the smallest loss scale \(1, fp16.min_loss_scale\): "
        r"step 2 was skipped: the gradient of linear.bias is not finite, and the loss is nan; the model diverges"
    )
    for _ in range(2):
        with pytest.raises(LossScaleError, match=message):
            engine.train_batch(GOOD)
    assert np.isfinite(float(engine.eval_batch(GOOD)["loss"]))


def test_too_many_skipped_steps_in_a_row_end_the_run(tmp_path):
    sections = {"jzero": {"max_skipped_steps_in_a_row": 2}}
    engine = build(1, GOOD, model=Counting, sections=sections)
    engine.save_checkpoint(tmp_path / "start")
    for batch in (BAD, GOOD, BAD, BAD):  # the good one begins the count anew
        engine.train_batch(batch)
    message = r"^2 steps in a row were skipped \(jzero.max_skipped_steps_in_a_row\); step 4 was skipped: the grad"
    for _ in range(2):
        with pytest.raises(SkippedStepsError, match=message):
            engine.train_batch(GOOD)
    engine.load_checkpoint(tmp_path / "start")
    assert int(engine.train_batch(GOOD)["applied_steps"]) == 1


def test_gradients_beyond_fp16_overflow_only_in_fp16():
    loss = lambda model, batch: squared_error(model, batch) * 1e6
    found = {}
    for name, sections in PRECISIONS.items():
        engine = build(1, GOOD, model=Counting, loss_fn=loss, sections=sections)
        found[name] = engine.why_skipped(engine.train_batch(GOOD))
    culprit = found.pop("fp16")
    assert culprit == "step 1 was skipped: the gradient of linear.bias overflows at loss scale 256"
    assert found == {"fp32": None, "bf16": None}


@pytest.mark.parametrize(("finite", "expected"), [(False, [1, 2]), (True, [3, 3])])
def test_two_states_that_would_get_one_value_keep_their_own(finite, expected):
    state, grads = [jnp.float32(1), jnp.float32(2)], jnp.ones(3)
    program, _ = trace(lambda state, grads: [jnp.sum(grads)] * 2, state, grads)
    kept = run_replacing(program, [*state, grads], lambda new, old: keep(new, old, jnp.asarray(finite)))
    assert kept == expected
