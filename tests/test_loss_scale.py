"""The loss scaler, against traces of DeepSpeed and a plain Python state machine."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.config import Config
from jzero.loss_scale import init_loss_scale, update_loss_scale

TRACES = json.loads((Path(__file__).parent / "golden/loss_scale.json").read_text())["traces"]
NAMES = ("loss_scale_window", "hysteresis", "consecutive_hysteresis")


def fp16(power=16, **keys) -> Config:
    return Config.load({"fp16": {"enabled": True, "initial_scale_power": power, **keys}})


def trace(config, overflows):
    def step(state, overflow):
        state = update_loss_scale(state, overflow, config)
        return state, state

    states = jax.jit(lambda o: jax.lax.scan(step, init_loss_scale(config), o)[1])(jnp.asarray(overflows, bool))
    return [np.asarray(x) for x in (states.scale, states.hysteresis_left, states.exhausted)]


def test_all_of_deepspeeds_traces():
    groups = {}
    for t in TRACES:
        groups.setdefault((t["scale_window"], t["hysteresis"], t["consecutive_hysteresis"]), []).append(t)
    assert sum(map(len, groups.values())) == 96
    length = max(len(t["overflow"]) for t in TRACES)
    for key, traces in groups.items():
        config = fp16(**dict(zip(NAMES, key, strict=True)))
        padded = [t["overflow"] + [0] * (length - len(t["overflow"])) for t in traces]
        step = lambda state, overflow, config=config: 2 * (update_loss_scale(state, overflow, config),)
        run = lambda o, step=step, config=config: jax.lax.scan(step, init_loss_scale(config), o)[1]
        states = jax.jit(jax.vmap(run))(jnp.asarray(padded, bool))
        for i, t in enumerate(traces):
            n = len(t["overflow"])
            np.testing.assert_array_equal(states.scale[i, :n], np.float32(t["scale_after_step"]))
            np.testing.assert_array_equal(states.hysteresis_left[i, :n], t["cur_hysteresis_after_step"])
            assert t["raised"] is None
            assert not states.exhausted[i, :n].any()


PATTERN = [0, 0, 0, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("keys", "overflows", "scales", "left"),
    [
        (
            {"power": 8, "hysteresis": 2},
            PATTERN,
            [256, 256, 512, 512, 1024, 1024, 1024, 512, 256, 256, 256, 512, 512, 1024, 1024, 512],
            [2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1],
        ),
        (
            {"power": 8, "hysteresis": 2, "consecutive_hysteresis": True},
            PATTERN,
            [256, 256, 512, 512, 1024, 1024, 1024, 1024, 512, 512, 512, 1024, 1024, 2048, 2048, 1024],
            [2, 2, 2, 2, 2, 1, 2, 1, 1, 2, 2, 2, 2, 2, 1, 1],
        ),
        (
            {"power": 8, "hysteresis": 3},
            [1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1],
            [256, 256, 128, 64, 64, 64, 128, 128, 128, 64, 32],
            [2, 1, 1, 1, 1, 1, 3, 2, 1, 1, 1],
        ),
    ],
)
def test_written_out_traces(keys, overflows, scales, left):
    got_scales, got_left, _ = trace(fp16(loss_scale_window=2, **keys), overflows)
    assert got_scales.tolist() == scales
    assert got_left.tolist() == left


def test_at_the_minimum_it_is_exhausted():
    scales, left, exhausted = trace(fp16(power=3), [1, 1, 1, 1, 1, 0])
    assert scales.tolist() == [8, 4, 2, 1, 1, 1]
    assert left.tolist() == [1] * 6
    assert exhausted.tolist() == [False, False, False, False, True, False]


class Reference:
    """The scaler written as it is described."""

    def __init__(self, scale, window, smallest, hysteresis, consecutive):
        self.scale, self.window, self.smallest = scale, window, smallest
        self.full = self.left = hysteresis
        self.consecutive, self.iteration, self.last = consecutive, 0, -1

    def update(self, overflow):
        exhausted = False
        if overflow:
            if self.left == 1:
                exhausted = self.scale == self.smallest
                self.scale = max(self.scale / 2, self.smallest)
            else:
                self.left -= 1
            self.last = self.iteration
        else:
            if self.consecutive:
                self.left = self.full
            stable = self.iteration - self.last - 1
            if stable > 0 and stable % self.window == 0:
                self.left = self.full
                self.scale *= 2
        self.iteration += 1
        return self.scale, self.left, exhausted


@settings(max_examples=25, deadline=None)
@given(
    overflows=st.lists(st.booleans(), min_size=60, max_size=60),
    power=st.integers(0, 24),
    window=st.integers(1, 5),
    smallest=st.integers(1, 64),
    hysteresis=st.integers(1, 4),
    consecutive=st.booleans(),
)
def test_any_run_follows_the_state_machine(overflows, power, window, smallest, hysteresis, consecutive):
    keys = {"loss_scale_window": window, "min_loss_scale": smallest, "hysteresis": hysteresis}
    got = trace(fp16(power=power, consecutive_hysteresis=consecutive, **keys), overflows)
    reference = Reference(2.0**power, window, smallest, hysteresis, consecutive)
    expected = [reference.update(o) for o in overflows]
    for values, column in zip(got, zip(*expected, strict=True), strict=True):
        assert values.tolist() == list(column)


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 1.0),
        ({"bf16": {"enabled": True}}, 1.0),
        ({"fp16": {"enabled": True, "loss_scale": 512}}, 512.0),
        ({"fp16": {"loss_scale": 512}}, 1.0),
    ],
)
def test_a_static_scale_never_changes(config, scale):
    scales, _, exhausted = trace(Config.load(config), [0, 1, 1, 1, 0, 0])
    assert scales.tolist() == [scale] * 6
    assert not exhausted.any()


def test_dtypes_survive_a_step():
    state = init_loss_scale(fp16())
    after = update_loss_scale(state, jnp.asarray(True), fp16())
    assert (
        [x.dtype.name for x in after] == ["float32", "int32", "int32", "int32", "bool"] == [x.dtype.name for x in state]
    )
