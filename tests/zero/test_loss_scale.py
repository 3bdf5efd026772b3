"""The loss scaler, against traces of DeepSpeed and a plain Python state machine."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.config import Config
from jzero.errors import ConfigError
from jzero.zero.loss_scale import init_loss_scale, skipped_share, update_loss_scale

TRACES = json.loads((Path(__file__).parents[1] / "golden/loss_scale.json").read_text())["traces"]
NAMES = ("loss_scale_window", "hysteresis", "consecutive_hysteresis")


def fp16(power=16, largest=None, **keys) -> Config:
    extensions = {} if largest is None else {"max_loss_scale": largest}
    return Config.load({"fp16": {"enabled": True, "initial_scale_power": power, **keys}, "jzero": extensions})


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

    def __init__(self, scale, window, smallest, hysteresis, consecutive, largest: Any = 2.0**127):
        self.scale, self.window, self.smallest, self.largest = min(scale, largest), window, smallest, largest
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
                self.scale = min(self.scale * 2, self.largest)
        self.iteration += 1
        return self.scale, self.left, exhausted


@settings(max_examples=25, deadline=None)
@given(
    overflows=st.lists(st.booleans(), min_size=60, max_size=60),
    power=st.integers(0, 127),
    window=st.integers(1, 5),
    smallest=st.one_of(st.integers(1, 64), st.sampled_from([0.5, 0.01, 1e-10])),
    hysteresis=st.integers(1, 4),
    consecutive=st.booleans(),
    room=st.one_of(st.none(), st.integers(1, 2**24)),
)
def test_any_run_follows_the_state_machine(overflows, power, window, smallest, hysteresis, consecutive, room):
    power = max(power, math.ceil(math.log2(smallest)))  # a smallest scale above the first one is refused
    largest = None if room is None else smallest * room
    keys = {"loss_scale_window": window, "min_loss_scale": smallest, "hysteresis": hysteresis}
    got = trace(fp16(power=power, largest=largest, consecutive_hysteresis=consecutive, **keys), overflows)
    smallest, largest = np.float32(smallest), np.float32(2.0**127 if largest is None else largest)
    reference = Reference(np.float32(2.0**power), window, smallest, hysteresis, consecutive, largest)
    with np.errstate(over="ignore"):  # before it is cut to the largest
        expected = [reference.update(o) for o in overflows]
    for values, column in zip(got, zip(*expected, strict=True), strict=True):
        assert values.tolist() == list(column)


@pytest.mark.parametrize("smallest", [0.01, 1e-10, "0.5"])
def test_a_fraction_is_a_floor_too(smallest):
    config = fp16(power=1, hysteresis=1, min_loss_scale=smallest)
    floor = np.float32(smallest)
    n_halvings = int(np.ceil(np.log2(2 / floor)))
    scales, _, exhausted = trace(config, [1] * (n_halvings + 1))
    assert scales[-3] > scales[-2] == scales[-1] == floor
    assert exhausted.tolist() == [False] * n_halvings + [True]


@pytest.mark.parametrize("smallest", [0, 1e-50])
def test_a_dynamic_scale_needs_a_floor(smallest):
    with pytest.raises(ConfigError, match=r"`fp16.min_loss_scale` must be a number above 0 that fp32 holds"):
        fp16(min_loss_scale=smallest)
    assert fp16(min_loss_scale=smallest, loss_scale=8).fp16.min_loss_scale == smallest  # a static one has no use for it


def test_a_scale_that_only_grows_never_becomes_infinite():
    scales, _, _ = trace(fp16(power=125, loss_scale_window=1), [0] * 6)
    assert np.log2(scales).tolist() == [125, 126, 127, 127, 127, 127]


def test_a_ceiling_below_the_start_and_below_the_floor():
    assert trace(fp16(power=32, largest=3e4, loss_scale_window=1), [0, 0, 0])[0].tolist() == [3e4] * 3
    with pytest.raises(ConfigError, match=r"`jzero.max_loss_scale` is 2, below the `fp16.min_loss_scale` of 4"):
        fp16(largest=2, min_loss_scale=4)


@jax.jit
def memory(overflows):
    config = Config.load({"bf16": {"enabled": True}})

    def step(state, overflow):
        state = update_loss_scale(state, overflow, config)
        return state, (skipped_share(state), state.skipped_in_a_row)

    return jax.lax.scan(step, init_loss_scale(config), overflows)[1]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.booleans(), min_size=130, max_size=130))
def test_in_every_dtype_skipped_steps_are_remembered(skipped):
    shares, in_a_row = map(np.asarray, memory(jnp.asarray(skipped)))
    last_taken = -1
    for i, skip in enumerate(skipped):
        last_taken = last_taken if skip else i
        assert in_a_row[i] == i - last_taken
        assert float(shares[i]) == pytest.approx(np.mean(skipped[max(0, i - 99) : i + 1]))


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({}, 1.0),
        ({"bf16": {"enabled": True}}, 1.0),
        ({"fp16": {"enabled": True, "loss_scale": 512}}, 512.0),
        ({"fp16": {"enabled": True, "loss_scale": 0.25, "min_loss_scale": 0}}, 0.25),
        ({"fp16": {"loss_scale": 512}}, 1.0),
    ],
)
def test_a_static_scale_never_changes(config, scale):
    scales, _, exhausted = trace(Config.load(config | {"jzero": {"max_loss_scale": 2}}), [0, 1, 1, 1, 0, 0])
    assert scales.tolist() == [scale] * 6
    assert not exhausted.any()


def test_dtypes_survive_a_step():
    state = init_loss_scale(fp16())
    after = update_loss_scale(state, jnp.asarray(True), fp16())
    assert (
        [x.dtype.name for x in after]
        == ["float32", *["int32"] * 3, "bool", "int32", "bool"]
        == [x.dtype.name for x in state]
    )
