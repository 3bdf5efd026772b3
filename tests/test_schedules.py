"""Learning-rate schedules, against traces of DeepSpeed and the formulas of Hugging Face."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.config import Config, TrainingArguments
from jzero.schedules import build_schedule, hf_schedule

TRACES = json.loads((Path(__file__).parent / "golden/lr_schedules.json").read_text())["traces"]
SUPPORTED = [t for t in TRACES if t["type"].startswith("Warmup")]


def rates(schedule, n):
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(n, dtype=jnp.int32)))


def warmup(kind, base=5e-4, **params):
    return build_schedule(Config.load({"scheduler": {"type": kind, "params": params}}).scheduler, base)


@pytest.mark.parametrize("trace", SUPPORTED, ids=lambda t: f"{t['type']}-{t['params']['warmup_num_steps']}")
def test_deepspeeds_trace(trace):
    schedule = warmup(trace["type"], trace["optimizer_base_lr"], **trace["params"])
    got = rates(schedule, len(trace["lr"]))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, trace["lr"], rtol=1e-6, atol=0)


def test_six_of_the_traces_are_of_supported_types():
    assert len(SUPPORTED) == 6


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
    lr = rates(warmup(kind, 1.0, **params), max(2, warm) + extra + 5)
    assert lr[0] == lr[1] == pytest.approx(low, rel=1e-6, abs=1e-30)  # fp32 has no smaller normal numbers
    top = max(2, warm) + 1  # the update at t = W
    ulp = 1e-6 * (low + span)
    assert (np.diff(lr[: top + 1]) >= -ulp).all()
    assert (np.diff(lr[top:]) <= ulp).all()
    assert lr.min() >= low - ulp
    assert lr.max() == pytest.approx(low + span, rel=1e-6)
    assert lr[-1] == pytest.approx(low if kind == "WarmupDecayLR" else low + span, rel=1e-6, abs=1e-30)


def hugging_face(kind, k, warm, total):
    if kind != "constant" and k < warm:
        return k / max(1, warm)
    progress = (k - warm) / max(1, total - warm)
    if kind == "linear":
        return max(0.0, (total - k) / max(1, total - warm))
    return max(0.0, 0.5 * (1 + math.cos(math.pi * min(progress, 1)))) if kind == "cosine" else 1.0


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["linear", "cosine", "constant", "constant_with_warmup"]),
    total=st.integers(1, 300),
    steps=st.integers(0, 50),
    ratio=st.floats(0, 1),
    k=st.integers(0, 299),
)
def test_hugging_face_schedules(kind, total, steps, ratio, k):
    arguments = TrainingArguments(lr_scheduler_type=kind, warmup_steps=steps, warmup_ratio=ratio, learning_rate=0.5)
    warm, k = steps or math.ceil(total * ratio), k % total
    expected = 0.5 * hugging_face(kind, k, warm, total)
    assert float(hf_schedule(arguments, total)(k)) == pytest.approx(expected, rel=2e-6, abs=1e-9)
