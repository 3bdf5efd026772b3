"""torch's schedules, against their closed forms in plain Python."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.config import Config
from jzero.errors import ConfigError
from jzero.schedules import build_momentum, build_schedule

BASE = 0.3
STEPS = jnp.arange(310, dtype=jnp.int32)


def section(kind, **params):
    return Config.load({"scheduler": {"type": kind, "params": params}}).scheduler


def rates(schedule, n):
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(n, dtype=jnp.int32)))


def half_cosine(start, end, done):
    return end + (start - end) * (1 + math.cos(math.pi * done)) / 2


def warm_restarts(k, first, factor, low):
    length = first
    while k >= length:
        k, length = k - length, length * factor
    return half_cosine(BASE, low, k / length)


def triangle(k, up, down):
    k %= up + down
    return k / up if k <= up else (up + down - k) / down


def one_cycle(k, total, pct, high, div, final, three, line=False, values=None):
    first = high / div
    values = values or ([first, high, first, first / final] if three else [first, high, first / final])
    ends = [pct * total - 1, 2 * pct * total - 2, total - 1] if three else [pct * total - 1, total - 1]
    start = 0
    for i, end in enumerate(ends):
        if k <= end or i == len(ends) - 1:
            done = (k - start) / (end - start)
            a, b = values[i], values[i + 1]
            return a + (b - a) * done if line else half_cosine(a, b, done)
        start = end
    raise AssertionError


CASES = {
    "ConstantLR": [({"factor": 0.25, "total_iters": 7}, lambda k: BASE * (0.25 if k < 7 else 1))],
    "LinearLR": [
        ({}, lambda k: BASE * (1 / 3 + 2 / 3 * min(k, 5) / 5)),
        (
            {"start_factor": 1.0, "end_factor": 0.1, "total_iters": 11},
            lambda k: BASE * (1 - 0.9 * min(k, 11) / 11),
        ),
    ],
    "PolynomialLR": [({"total_iters": 13, "power": 2.5}, lambda k: BASE * (1 - min(k, 13) / 13) ** 2.5)],
    "StepLR": [({"step_size": 4, "gamma": 0.7}, lambda k: BASE * 0.7 ** (k // 4))],
    "MultiStepLR": [
        ({"milestones": [9, 3, 9], "gamma": 0.5}, lambda k: BASE * 0.5 ** sum(k >= m for m in (3, 9, 9))),
        ({"milestones": []}, lambda k: BASE),
    ],
    "ExponentialLR": [({"gamma": 0.93}, lambda k: BASE * 0.93**k)],
    "CosineAnnealingLR": [({"T_max": 12, "eta_min": 0.01}, lambda k: half_cosine(BASE, 0.01, k / 12))],
    "CosineAnnealingWarmRestarts": [
        ({"T_0": 7}, lambda k: warm_restarts(k, 7, 1, 0.0)),
        ({"T_0": 3, "T_mult": 2, "eta_min": 0.02}, lambda k: warm_restarts(k, 3, 2, 0.02)),
    ],
    "CyclicLR": [
        (
            {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 5, "step_size_down": 3},
            lambda k: 0.01 + 0.19 * triangle(k, 5, 3),
        ),
        (
            {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 5, "mode": "triangular2"},
            lambda k: 0.01 + 0.19 * triangle(k, 5, 5) / 2 ** (k // 10),
        ),
        (
            {"base_lr": 0.01, "max_lr": 0.2, "step_size_up": 4, "mode": "exp_range", "gamma": 0.95},
            lambda k: 0.01 + 0.19 * triangle(k, 4, 4) * 0.95**k,
        ),
    ],
    "OneCycleLR": [
        ({"max_lr": 0.5, "total_steps": 40}, lambda k: one_cycle(k, 40, 0.3, 0.5, 25, 1e4, False)),
        (
            {"max_lr": 0.5, "epochs": 8, "steps_per_epoch": 5, "pct_start": 0.2, "three_phase": True}
            | {"div_factor": 5, "final_div_factor": 50, "anneal_strategy": "linear"},
            lambda k: one_cycle(k, 40, 0.2, 0.5, 5, 50, True, line=True),
        ),
    ],
}


@pytest.mark.parametrize(
    ("kind", "params", "formula"), [(kind, *case) for kind, cases in CASES.items() for case in cases]
)
def test_closed_form(kind, params, formula):
    got = rates(build_schedule(section(kind, **params), BASE), 40)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, [formula(k) for k in range(40)], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(build_schedule(section(kind, **params), BASE)(13), got[13], rtol=1e-6)  # without jit


def test_momentum_goes_against_the_rate():
    cyclic = build_momentum(section("CyclicLR", base_lr=0.1, max_lr=1, step_size_up=5, base_momentum=0.7))
    cycle = build_momentum(section("OneCycleLR", max_lr=1, total_steps=40, three_phase=True))
    assert cyclic is not None
    assert cycle is not None
    assert (cyclic.beta2, cyclic.only_betas, cycle.beta2, cycle.only_betas) == (None, False, None, False)
    expected = [0.9 - 0.2 * triangle(k, 5, 5) for k in range(40)]
    np.testing.assert_allclose(rates(cyclic.schedule, 40), expected, rtol=1e-6)
    expected = [one_cycle(k, 40, 0.3, 1, 1, 1, True, values=[0.95, 0.85, 0.95, 0.95]) for k in range(40)]
    np.testing.assert_allclose(rates(cycle.schedule, 40), expected, rtol=1e-6)
    assert build_momentum(section("OneCycleLR", max_lr=1, total_steps=40, cycle_momentum=False)) is None
    assert build_momentum(section("StepLR", step_size=1)) is None


@settings(max_examples=30, deadline=None)
@given(first=st.integers(1, 30), factor=st.integers(1, 4), k=st.integers(0, 2000), low=st.floats(0, 0.3))
def test_restarts_come_at_the_end_of_each_cycle(first, factor, k, low):
    params = {"T_0": first, "T_mult": factor, "eta_min": low}
    schedule = build_schedule(section("CosineAnnealingWarmRestarts", **params), BASE)
    assert float(schedule(k)) == pytest.approx(warm_restarts(k, first, factor, low), rel=2e-6, abs=1e-8)


@settings(max_examples=20, deadline=None)
@given(
    total=st.integers(12, 300),
    pct=st.floats(0.1, 0.45),
    three=st.booleans(),
    line=st.booleans(),
    div=st.floats(1, 100),
)
def test_one_cycle_rises_and_falls_between_its_rates(total, pct, three, line, div):
    params = {"max_lr": 1.0, "total_steps": total, "pct_start": pct, "three_phase": three, "div_factor": div}
    schedule = build_schedule(section("OneCycleLR", anneal_strategy="linear" if line else "cos", **params), BASE)
    lr, top = np.asarray(schedule(STEPS)), pct * total - 1
    np.testing.assert_allclose(lr[0], 1 / div, rtol=1e-5)
    assert (np.diff(lr[: math.floor(top) + 1]) >= -1e-6).all()
    assert (np.diff(lr[math.ceil(top) :]) <= 1e-6).all()
    assert lr.max() <= 1 + 1e-6
    np.testing.assert_allclose(lr[total - 1 :], 1 / div / 1e4, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("kind", "params", "message"),
    [
        ("OneCycleLR", {"max_lr": 1}, "`scheduler.params.total_steps` is missing: give it, or"),
        ("StepLR", {}, "`scheduler.params.step_size` is missing"),
        ("StepLR", {"step_size": 2, "stepsize": 3}, "`scheduler.params.step_size`, which it resembles, is there"),
        ("MultiStepLR", {"milestones": 3}, "must be a list of whole numbers, got 3"),
        ("ExponentialLR", {"gamma": 0}, "`scheduler.params.gamma` must be a number between 1e-30 and"),
        ("StepLR", {"step_size": 2, "last_epoch": 4}, "a checkpoint restores the position"),
    ],
)
def test_what_cannot_be_built_is_refused(kind, params, message):
    with pytest.raises(ConfigError, match=message):
        section(kind, **params)
