"""Optimizers, against their update rules written in numpy (float64)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jzero.config import Config
from jzero.optim import build_optimizer

STEPS = 12
RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.standard_normal((3, 4)), "b": RNG.standard_normal(5)}
GRADS = [
    {k: RNG.standard_normal(v.shape) * 10.0 ** RNG.integers(-6, 2) for k, v in WEIGHTS.items()} for _ in range(STEPS)
]
LRS = np.linspace(0.0, 0.1, STEPS)


def optimizer_of(kind, params):
    section = Config.load({"optimizer": {"type": kind, "params": params}}).optimizer
    assert section is not None
    return build_optimizer(section, lambda step: jnp.asarray(LRS, jnp.float32)[step])


def run_jax(kind, params):
    optimizer = optimizer_of(kind, params)

    @jax.jit
    def step(weights, state, grads):
        with jax.numpy_dtype_promotion("standard"):  # as the step does: optax mixes its step count with floats
            updates, state = optimizer.update(grads, state, weights)
        return optax.apply_updates(weights, updates), state

    weights = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), WEIGHTS)
    state = optimizer.init(weights)
    for grads in GRADS:
        weights, state = step(weights, state, jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads))
    return weights


def adam(p, g, s, lr, t, betas=(0.9, 0.999), eps=1e-8, decay=0.0, decoupled=True):
    if not decoupled:
        g = g + decay * p
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    m, v = s["m"] / (1 - betas[0] ** t), s["v"] / (1 - betas[1] ** t)
    if decoupled:
        p = p * (1 - lr * decay)
    return p - lr * m / (np.sqrt(v) + eps)


def sgd(p, g, s, lr, t, momentum=0.0, decay=0.0, nesterov=False):
    g = g + decay * p
    if momentum:
        s["m"] = momentum * s.get("m", 0) + g
        g = g + momentum * s["m"] if nesterov else s["m"]
    return p - lr * g


def lion(p, g, s, lr, t, betas=(0.9, 0.99), decay=0.0):
    m = s.get("m", 0)
    s["m"] = betas[1] * m + (1 - betas[1]) * g
    return p * (1 - lr * decay) - lr * np.sign(betas[0] * m + (1 - betas[0]) * g)


@pytest.mark.parametrize(
    ("kind", "params", "rule"),
    [
        ("AdamW", {}, lambda *a: adam(*a)),
        ("adam", {"betas": [0.8, 0.95], "eps": 1e-3}, lambda *a: adam(*a, betas=(0.8, 0.95), eps=1e-3)),
        ("Adam", {"weight_decay": 0.3}, lambda *a: adam(*a, decay=0.3)),
        ("Adam", {"weight_decay": 0.3, "adam_w_mode": False}, lambda *a: adam(*a, decay=0.3, decoupled=False)),
        ("AdamW", {"weight_decay": 0.3, "adam_w_mode": False}, lambda *a: adam(*a, decay=0.3)),
        ("AdamW", {"torch_adam": True}, lambda *a: adam(*a, decay=0.01)),
        ("Adam", {"torch_adam": True, "adam_w_mode": False}, lambda *a: adam(*a, decoupled=False)),
        ("SGD", {"weight_decay": 0.1}, lambda *a: sgd(*a, decay=0.1)),
        ("SGD", {"momentum": 0.9}, lambda *a: sgd(*a, momentum=0.9)),
        ("sgd", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}, lambda *a: sgd(*a, 0.9, 0.1, True)),
        ("Lion", {}, lambda *a: lion(*a)),
        ("Lion", {"betas": [0.8, 0.9], "weight_decay": 0.2}, lambda *a: lion(*a, betas=(0.8, 0.9), decay=0.2)),
    ],
)
def test_update_rule(kind, params, rule):
    got = run_jax(kind, params)
    for name, p in WEIGHTS.items():
        state = {}
        for t, (grads, lr) in enumerate(zip(GRADS, LRS, strict=True), start=1):
            p = rule(p, grads[name], state, lr, t)
        np.testing.assert_allclose(got[name], p, rtol=2e-5, atol=2e-6)


def test_moments_are_fp32_and_shaped_like_the_parameters():
    state = optimizer_of("AdamW", {}).init({"w": jnp.ones((2, 3), jnp.float32)})
    arrays = [x for x in jax.tree.leaves(state) if x.ndim]
    assert [(x.shape, x.dtype) for x in arrays] == [((2, 3), jnp.float32)] * 2


def test_the_rules_that_need_more_are_refused():
    with pytest.raises(ValueError, match=r"`optimizer.params.nesterov` needs a `momentum` above 0"):
        Config.load({"optimizer": {"type": "SGD", "params": {"nesterov": True}}})
