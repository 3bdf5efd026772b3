"""Hugging Face's schedules, against their definitions in plain Python."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.config import TrainingArguments, load_run
from jzero.config.schema.building import build
from jzero.errors import ConfigError
from jzero.schedules import hf_schedule
from jzero.train.trainer import prepare
from tests.helpers import mesh_of

BASE = 0.5
STEPS = jnp.arange(70, dtype=jnp.int32)


def rates(total, **arguments):
    schedule = hf_schedule(TrainingArguments(learning_rate=BASE, **arguments), total)
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.arange(total, dtype=jnp.int32)))


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


def restarts(k, warm, total, n):
    p = (k - warm) / (total - warm)
    return (1 + math.cos(math.pi * ((n * p) % 1))) / 2


def wave(k, warm, total, n=0.5, ahead=0):
    return (1 + math.cos(2 * math.pi * n * (k + ahead - warm) / (total - warm))) / 2


def stable(k, warm, level, down, rise, fall, low):
    if k < warm:
        p = k / warm
        f = {"linear": p, "cosine": (1 - math.cos(math.pi * p)) / 2, "1-sqrt": 1 - math.sqrt(1 - p)}[rise]
    elif k < warm + level:
        f = 1.0
    elif k < warm + level + down:
        p = (k - warm - level) / down
        f = {"linear": 1 - p, "cosine": (1 + math.cos(math.pi * p)) / 2, "1-sqrt": 1 - math.sqrt(p)}[fall]
    else:
        f = 0.0
    return low + (1 - low) * f


W, T = 6, 30
CASES = [
    ("cosine", {"num_cycles": 1.25}, lambda k: wave(k, W, T, 1.25)),
    ("cosine_with_restarts", {"num_cycles": 3}, lambda k: restarts(k, W, T, 3)),
    ("polynomial", {"lr_end": 0.05, "power": 2}, lambda k: 0.1 + 0.9 * (1 - (k - W) / (T - W)) ** 2),
    ("inverse_sqrt", {}, lambda k: math.sqrt(W / k)),
    ("inverse_sqrt", {"timescale": 50}, lambda k: math.sqrt(50 / (k - W + 50))),
    ("cosine_with_min_lr", {"min_lr": 0.05}, lambda k: 0.1 + 0.9 * wave(k, W, T)),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2, "num_cycles": 2}, lambda k: 0.2 + 0.8 * wave(k, W, T, 2)),
]


@pytest.mark.parametrize(("kind", "kwargs", "formula"), CASES)
def test_the_part_after_the_warm_up(kind, kwargs, formula):
    got = rates(T, lr_scheduler_type=kind, warmup_steps=W, lr_scheduler_kwargs=kwargs)
    np.testing.assert_allclose(got[:W], BASE * np.arange(W) / W, rtol=1e-6)
    np.testing.assert_allclose(got[W:], [BASE * formula(k) for k in range(W, T)], rtol=2e-6, atol=1e-7)


def test_the_warm_up_that_does_not_start_at_zero():
    def formula(k, start):
        if k < W:
            return (k + 1) / W if start is None else start + (1 - start) * k / (W - 1)
        return 0.2 + 0.8 * wave(k, W, T, ahead=1)

    for start in (None, 0.3):
        kwargs = {"min_lr_rate": 0.2, **({} if start is None else {"warmup_lr_rate": start})}
        got = rates(T, lr_scheduler_type="cosine_warmup_with_min_lr", warmup_steps=W, lr_scheduler_kwargs=kwargs)
        np.testing.assert_allclose(got, [BASE * formula(k, start) for k in range(T)], rtol=2e-6)


@settings(max_examples=30, deadline=None)
@given(
    rise=st.sampled_from(["linear", "cosine", "1-sqrt"]),
    fall=st.sampled_from(["linear", "cosine", "1-sqrt"]),
    warm=st.integers(1, 20),
    level=st.integers(0, 20),
    down=st.integers(1, 20),
    low=st.floats(0, 1),
    by_total=st.booleans(),
)
def test_warmup_stable_decay(rise, fall, warm, level, down, low, by_total):
    kwargs = {"num_decay_steps": down, "warmup_type": rise, "decay_type": fall, "min_lr_ratio": low}
    total = warm + level + down
    if not by_total:
        kwargs["num_stable_steps"], total = level, total + 5
    arguments = {"lr_scheduler_type": "warmup_stable_decay", "warmup_steps": warm, "lr_scheduler_kwargs": kwargs}
    lr = np.asarray(hf_schedule(TrainingArguments(learning_rate=BASE, **arguments), total)(STEPS))[:total]
    expected = [BASE * stable(k, warm, level, down, rise, fall, low) for k in range(total)]
    np.testing.assert_allclose(lr, expected, rtol=2e-6, atol=2e-7)
    assert (np.diff(lr[: warm + 1]) >= -1e-6).all()
    assert (np.diff(lr[warm:]) <= 1e-6).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "it follows a metric; use linear"),
        ({"lr_scheduler_type": "sunshine"}, "must be one of linear, cosine, cosine_with_restarts, polynomial"),
        ({"lr_scheduler_kwargs": {"num_cycles": 1}}, "unknown key `lr_scheduler_kwargs.num_cycles`"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "`lr_scheduler_kwargs.min_lr` or `min_lr_rate` must be given"),
        ({"lr_scheduler_type": "warmup_stable_decay"}, "`lr_scheduler_kwargs.num_decay_steps` is missing"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        build(TrainingArguments, arguments, file="run.json")


def test_a_polynomial_falls():
    arguments = TrainingArguments(lr_scheduler_type="polynomial", learning_rate=1e-8)
    with pytest.raises(ConfigError, match=r"lr_end is 1e-07; it must be below the rate 1e-08"):
        hf_schedule(arguments, 10)


def test_the_run_starts_from_the_learning_rate_of_the_file(tmp_path):
    """Where the arguments set none; theirs has a default, which must not decide."""
    sizes = {"vocab_size": 256, "seq_len": 8, "d_model": 8, "n_layer": 1, "n_head": 1}
    (tmp_path / "run.json").write_text(
        json.dumps(
            {
                "model": {"family": "gpt", **sizes},
                "data": {"source": "text", "files": ["*.json"], "seq_len": 8},
                "training_arguments": {"max_steps": 4, "per_device_train_batch_size": 1},
                "deepspeed": {"optimizer": {"type": "SGD", "params": {"lr": 0.5}}},
            },
            indent=1,
        )
    )
    run = prepare(load_run(tmp_path / "run.json"), base=tmp_path, mesh=mesh_of(1))
    schedule = run.engine.functional.spec.schedule
    assert schedule is not None
    np.testing.assert_allclose([schedule(k) for k in range(4)], [0.5, 0.375, 0.25, 0.125])
