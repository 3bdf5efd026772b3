"""DeepSpeed's schedules, against traces of DeepSpeed and its formulas in plain Python."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.config import Config
from jzero.errors import ConfigError
from jzero.schedules import build_momentum, build_schedule

TRACES = json.loads((Path(__file__).parents[1] / "golden/lr_schedules.json").read_text())["traces"]

STEPS = jnp.arange(130, dtype=jnp.int32)


def rates(schedule, n):
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(n, dtype=jnp.int32)))


def section(kind, **params):
    return Config.load({"scheduler": {"type": kind, "params": params}}).scheduler


def warmup(kind, base=5e-4, **params):
    return build_schedule(section(kind, **params), base)


@pytest.mark.parametrize("trace", TRACES, ids=lambda t: t["type"])
def test_deepspeeds_trace(trace):
    schedule = warmup(trace["type"], trace["optimizer_base_lr"], **trace["params"])
    got = rates(schedule, len(trace["lr"]))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, trace["lr"], rtol=1e-6, atol=0)
    momentum = build_momentum(section(trace["type"], **trace["params"]))
    assert (momentum is None) == ("beta1" not in trace)
    if momentum is not None:
        assert (momentum.beta2, momentum.only_betas) == (0.99, True)
        np.testing.assert_allclose(rates(momentum.schedule, len(trace["beta1"])), trace["beta1"], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        ("WarmupLR", {"warmup_num_steps": 5}, [0, 0, 0.00430677, 0.00682606, 0.00861353, 0.01, 0.01]),
        ("WarmupLR", {"warmup_num_steps": 5, "warmup_type": "linear"}, [0, 0, 0.002, 0.004, 0.006, 0.008, 0.01]),
        (
            "WarmupDecayLR",
            {"warmup_num_steps": 4, "total_num_steps": 10, "warmup_max_lr": 0.01},
            [0, 0, 0.005, 0.00792481, 0.01, 0.01, 0.00833333, 0.00666667, 0.005, 0.00333333, 0.00166667, 0, 0],
        ),
        (
            "WarmupCosineLR",
            {"warmup_num_steps": 4, "total_num_steps": 10, "warmup_type": "linear"},
            [0, 0, 0.0025, 0.005, 0.0075, 0.00933019, 0.00750025, 0.0050005, 0.00250075, 0.000670806, 1e-6, 1e-6, 1e-6],
        ),
        (
            "LRRangeTest",
            {"lr_range_test_step_size": 4},
            [0.001, 0.00125, 0.0015, 0.00175, 0.002, 0.00225, 0.0025, 0.00275, 0.003, 0.00325],
        ),
        (
            "OneCycle",
            {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 4, "cycle_second_step_size": 6},
            [0.001, 0.00325, 0.0055, 0.00775, 0.01, 0.0085, 0.007, 0.0055, 0.004, 0.0025, 0.001, 0.001],
        ),
    ],
)
def test_short_traces(kind, params, expected):
    np.testing.assert_allclose(rates(warmup(kind, 0.01, **params), len(expected)), expected, rtol=2e-6)


def test_defaults_of_the_maximum():
    assert float(warmup("WarmupLR", 0.25)(5000)) == 0.25  # the optimizer's
    assert float(warmup("WarmupDecayLR", 0.25, total_num_steps=10**6)(1001)) == pytest.approx(
        1e-3
    )  # DeepSpeed's number


def test_no_scheduler_is_a_constant_rate():
    for scheduler in (None, Config.load({"scheduler": {"type": None}}).scheduler):
        np.testing.assert_array_equal(rates(build_schedule(scheduler, 0.5), 4), np.full(4, 0.5, np.float32))


def cosine_reference(k, base, warm, total, start, end, kind):
    t, w = k - 1, max(2, warm)
    if t < 0:
        return 0.0
    if t < w:
        rise = math.log(t + 1) / math.log(w) if kind == "log" else t / w
        return base * (start + (1 - start) * min(rise, 1))
    p = min(1, (t - w + 1) / max(1, total - w))
    return base * (end + (1 - end) * (1 + math.cos(math.pi * p)) / 2)


@settings(max_examples=30, deadline=None)
@given(
    warm=st.integers(0, 40),
    total=st.integers(1, 200),
    start=st.floats(0, 1),
    end=st.floats(0, 1),
    kind=st.sampled_from(["log", "linear"]),
    k=st.integers(0, 250),
)
def test_cosine_against_plain_python(warm, total, start, end, kind, k):
    params = {"warmup_min_ratio": start, "cos_min_ratio": end, "warmup_type": kind}
    schedule = warmup("WarmupCosineLR", 0.1, warmup_num_steps=warm, total_num_steps=total, **params)
    expected = cosine_reference(k, 0.1, warm, total, start, end, kind)
    assert float(schedule(k)) == pytest.approx(expected, rel=2e-6, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(
    kind=st.sampled_from(["WarmupLR", "WarmupDecayLR"]),
    warmup_type=st.sampled_from(["log", "linear"]),
    warm=st.integers(0, 60),
    extra=st.integers(1, 60),
    low=st.floats(0, 1e-3),
    span=st.floats(1e-6, 1e-2),
)
def test_rise_then_fall_between_the_bounds(kind, warmup_type, warm, extra, low, span):
    params = {"warmup_type": warmup_type, "warmup_num_steps": warm, "warmup_min_lr": low, "warmup_max_lr": low + span}
    if kind == "WarmupDecayLR":
        params["total_num_steps"] = max(2, warm) + extra
    lr = np.asarray(warmup(kind, 1.0, **params)(STEPS))[: max(2, warm) + extra + 5]
    assert lr[0] == lr[1] == pytest.approx(low, rel=1e-6, abs=1e-30)  # fp32 has no smaller normal numbers
    top = max(2, warm) + 1  # the update at t = W
    ulp = 1e-6 * (low + span)
    assert (np.diff(lr[: top + 1]) >= -ulp).all()
    assert (np.diff(lr[top:]) <= ulp).all()
    assert lr.min() >= low - ulp
    assert lr.max() == pytest.approx(low + span, rel=1e-6)
    assert lr[-1] == pytest.approx(low if kind == "WarmupDecayLR" else low + span, rel=1e-6, abs=1e-30)


def test_momentum_decays_with_the_rate_after_the_cycle():
    """As in DeepSpeed, without a bound."""
    decay = {"decay_lr_rate": 0.5, "decay_step_size": 2, "decay_mom_rate": 0.1}
    params = {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_first_step_size": 4, **decay}
    lr = [0.001, 0.00325, 0.0055, 0.00775, 0.01, 0.00775, 0.0055, 0.00325, 0.001, 0.0008, 2 / 3000, 0.004 / 7, 0.0005]
    mom = [0.8, 0.875, 0.85, 0.825, 0.8, 0.825, 0.85, 0.875, 0.9, 0.945, 0.99, 1.035, 1.08]
    np.testing.assert_allclose(rates(warmup("OneCycle", **params), 13), lr, rtol=1e-6)
    momentum = build_momentum(section("OneCycle", **params))
    assert momentum is not None
    np.testing.assert_allclose(rates(momentum.schedule, 13), mom, rtol=1e-6)
    assert build_momentum(section("OneCycle", **params, cycle_momentum=False)) is None


def one_cycle_reference(k, low, high, first, second, stairs, stairs_down, rate, size):
    if k > first + second:
        return low / (1 + rate * (k - first - second) / size) if size else low
    done, whole, stairs = (k, first, stairs) if k <= first else (first + second - k, second, stairs_down)
    return low + (high - low) * (done * stairs // whole / stairs if stairs else done / whole)


@settings(max_examples=40, deadline=None)
@given(
    first=st.integers(1, 40),
    second=st.integers(1, 40),
    stairs=st.integers(0, 7),
    down=st.integers(0, 7),
    rate=st.floats(0, 2),
    size=st.integers(0, 9),
    k=st.integers(0, 120),
)
def test_one_cycle_against_plain_python(first, second, stairs, down, rate, size, k):
    sizes = {"cycle_first_step_size": first, "cycle_second_step_size": second, "decay_step_size": size}
    counts = {"cycle_first_stair_count": stairs, "cycle_second_stair_count": down, "decay_lr_rate": rate}
    schedule = warmup("OneCycle", cycle_min_lr=0.1, cycle_max_lr=0.7, **sizes, **counts)
    expected = one_cycle_reference(k, 0.1, 0.7, first, second, stairs, down, rate, size)
    assert float(schedule(k)) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 50), rate=st.floats(0, 9), staircase=st.booleans(), k=st.integers(0, 2000))
def test_a_range_test_grows_without_end(size, rate, staircase, k):
    names = {"step_size": size, "step_rate": rate, "staircase": staircase, "min_lr": 0.25}
    schedule = warmup("LRRangeTest", **{f"lr_range_test_{name}": value for name, value in names.items()})
    intervals = k // size if staircase else k / size
    assert float(schedule(k)) == pytest.approx(0.25 * (1 + rate * intervals), rel=1e-6)


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ({"type": "OneCycle", "params": {"cycle_min_lr": 0}}, "`scheduler.params.cycle_max_lr` is missing"),
        ({"type": "WarmupLR", "params": {"last_batch_iteration": 7}}, "a checkpoint restores the position"),
        ({"type": "warmuplr"}, "`scheduler.type` = 'warmuplr' is refused: use WarmupLR"),
        ({"type": "ReduceLROnPlateau"}, "is refused: use WarmupDecayLR, or chain optax.contrib.reduce_on_plateau"),
        ({"type": "Sunshine"}, "or pass an optax schedule to initialize"),
    ],
)
def test_what_cannot_be_built_is_refused(scheduler, message):
    with pytest.raises(ConfigError, match=message):
        Config.load({"scheduler": scheduler})
