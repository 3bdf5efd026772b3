"""Three hundred fp16 steps, infinities in some micro-batches, against a plain state machine and true gradients."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers import build, host, restart
from tests.zero.test_loss_scale import Reference

N_STEPS, N_MICRO, ROWS, WIDTH = 300, 3, 12, 8
FP16 = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 4, "hysteresis": 2}
SECTIONS = {
    "fp16": FP16,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_max_lr": 0.05, "warmup_num_steps": 400, "warmup_type": "linear"},
    },
}


class Regression(nnx.Module):
    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (WIDTH, WIDTH)) / 4)
        self.bias = nnx.Param(jnp.zeros(WIDTH, jnp.float32))

    def __call__(self, x):
        return x @ self.kernel[...] + self.bias[...]


def loss(model, batch):
    return ((model(batch["x"]) - batch["y"]).astype(jnp.float32) ** 2).mean()


def true_gradient(params, batch):
    """Of the mean over the whole batch, unscaled, in float64."""
    x, y = (np.float64(batch[k]) for k in "xy")
    error = 2 * (x @ params["kernel"] + params["bias"] - y) / y.size
    return {"bias": error.sum(0), "kernel": x.T @ error}


@pytest.fixture(scope="module")
def engine():
    batch = {k: np.zeros((ROWS, WIDTH), np.float32) for k in "xy"}
    return build(3, batch, model=Regression, loss_fn=loss, n_devices=2, accumulation=N_MICRO, sections=SECTIONS)


@pytest.fixture(scope="module")
def run(engine):
    """What went into each step and what came out of it."""
    random = np.random.default_rng(5)
    # Two in three steps of trouble come right after another, so that hysteresis counts down and the scale is halved.
    spoilt, chance = [], 0.12
    for _ in range(N_STEPS):
        spoilt.append(int(random.integers(N_MICRO)) if random.random() < chance else -1)
        chance = 0.5 if spoilt[-1] >= 0 else 0.12
    restart(engine)
    steps, state = [], host(engine.state)
    for micro in spoilt:
        batch = {k: random.standard_normal((ROWS, WIDTH), np.float32) for k in "xy"}
        if micro >= 0:  # one row, on one of the devices, in this micro-batch and, to be told from it, in the last
            for at in {micro, N_MICRO - 1}:
                batch["x"][at * (ROWS // N_MICRO) + random.integers(ROWS // N_MICRO), 2] = np.inf
        metrics = host(engine.train_batch(batch))
        before, state = state, host(engine.state)
        steps.append((micro, batch, metrics, before, state))
    return steps


def momentum(state):
    has_trace = lambda s: hasattr(s, "trace")
    return next(filter(has_trace, jax.tree.leaves(state.opt_state, is_leaf=has_trace))).trace


def test_the_scale_follows_the_state_machine(run):
    reference = Reference(2.0**8, FP16["loss_scale_window"], 1.0, FP16["hysteresis"], False)
    scale, scales = reference.scale, []
    for micro, _, metrics, _, after in run:
        assert bool(metrics["overflow"]) == (micro >= 0)
        assert metrics["loss_scale"] == scale
        scale, left, exhausted = reference.update(micro >= 0)
        assert (after.loss_scale.scale, after.loss_scale.hysteresis_left) == (scale, left)
        assert not exhausted
        scales.append(scale)
    assert min(scales) < 64
    assert max(scales) > 4096


def test_the_spoilt_micro_batch_is_named(run):
    for micro, _, metrics, _, _ in run:
        assert metrics["nonfinite_micro_batch"] == micro
        assert metrics["nonfinite_leaf"] == (-1 if micro < 0 else 0)


def test_the_counts_of_skipped_steps(run):
    skipped = np.array([micro >= 0 for micro, *_ in run])
    in_a_row = 0
    for i, (_, _, metrics, _, _) in enumerate(run):
        in_a_row = in_a_row + 1 if skipped[i] else 0
        assert metrics["skipped_in_a_row"] == in_a_row
        assert metrics["skipped_steps"] == skipped[: i + 1].sum()
        np.testing.assert_allclose(metrics["skipped_share"], skipped[max(0, i - 99) : i + 1].mean(), rtol=1e-6)


def test_a_skipped_step_changes_nothing(run):
    for micro, _, _, before, after in run:
        assert after.step == before.step + 1
        assert after.applied_steps == before.applied_steps + (micro < 0)
        if micro >= 0:
            jax.tree.map(
                np.testing.assert_array_equal, (after.params, after.opt_state), (before.params, before.opt_state)
            )


def test_every_other_step_applies_the_true_gradient_at_the_rate_of_the_applied_steps(run):
    grown = 0
    for micro, batch, metrics, before, after in run:
        rate = 0.05 * max(int(before.applied_steps) - 1, 0) / 400  # DeepSpeed's two first steps have the same rate
        np.testing.assert_allclose(metrics["learning_rate"], rate, rtol=1e-5)
        if micro >= 0:
            continue
        grown += after.loss_scale.scale > before.loss_scale.scale
        expected = true_gradient(before.params, batch)
        for name, gradient in expected.items():
            applied = np.float64(momentum(after)[name]) - 0.9 * momentum(before)[name]
            np.testing.assert_allclose(applied, gradient, atol=4e-3 * np.abs(gradient).max())
            moved = before.params[name] - np.float64(after.params[name])
            np.testing.assert_allclose(moved, rate * momentum(after)[name], rtol=1e-4, atol=1e-7)
    assert grown > 20


def test_a_scale_that_starts_far_too_high_comes_down_and_the_run_trains(engine):
    state = restart(engine).state
    high = state.loss_scale._replace(scale=jax.device_put(jnp.float32(2.0**64), state.loss_scale.scale.sharding))
    engine.state = dataclasses.replace(state, loss_scale=high)
    reference = Reference(2.0**64, FP16["loss_scale_window"], 1.0, FP16["hysteresis"], False)
    random, before = np.random.default_rng(0), host(engine.params)
    batch = {k: random.standard_normal((ROWS, WIDTH), np.float32) for k in "xy"}
    largest = max(np.abs(g).max() for g in true_gradient(before, batch).values())
    skipped = 0
    while reference.scale * largest > 65504:
        metrics = engine.train_batch(batch)
        assert (float(metrics["loss_scale"]), bool(metrics["overflow"])) == (reference.scale, True)
        reference.update(True)
        skipped += 1
    assert 40 < skipped < 64
    jax.tree.map(np.testing.assert_array_equal, host(engine.params), before)
    taken = [engine.train_batch(batch) for _ in range(3)][-1]
    assert (int(taken["applied_steps"]), int(taken["skipped_steps"])) == (3, skipped)
    assert not np.array_equal(host(engine.params)["kernel"], before["kernel"])
