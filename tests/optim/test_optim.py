"""Optimizers, against their update rules written in numpy, both in float64."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jzero.config import Config
from jzero.errors import ConfigError
from jzero.optim import build_optimizer

STEPS = 8
RNG = np.random.default_rng(0)
WEIGHTS = {"w": RNG.standard_normal((3, 4)), "b": RNG.standard_normal(5)}
GRADS = [
    {k: RNG.standard_normal(v.shape) * 10.0 ** RNG.integers(-6, 2) for k, v in WEIGHTS.items()} for _ in range(STEPS)
]
LRS = np.linspace(0.0, 0.125, STEPS + 1, dtype=np.float32)[1:]


def schedule_of_the_test(step):
    return jnp.asarray(LRS)[step]


@pytest.fixture(scope="module", autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # optax mixes its step count with floats
        yield


def config_of(kind, params=None, **sections):
    return Config.load({"optimizer": {"type": kind, "params": params or {}}, **sections})


def steps_of(optimizer, weights=WEIGHTS, grads=GRADS, update=None):
    """The weights after each step."""
    weights = jax.tree.map(jnp.asarray, weights)
    state, found, update = optimizer.init(weights), [], update or optimizer.update
    for step in grads:
        updates, state = update(jax.tree.map(jnp.asarray, step), state, weights)
        weights = optax.apply_updates(weights, updates)
        found.append(weights)
    return found


def adam(p, g, s, lr, t, betas=(0.9, 0.999), eps=1e-8, decay=0.0, decoupled=True, corrected=True):
    if not decoupled:
        g = g + decay * p
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    m, v = s["m"], s["v"]
    if corrected:
        m, v = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
    if decoupled:
        p = p * (1 - lr * decay)
    return p - lr * m / (np.sqrt(v) + eps)


def sgd(p, g, s, lr, t, momentum=0.0, decay=0.0, nesterov=False, dampening=0.0):
    g = g + decay * p
    if momentum:
        s["m"] = momentum * s["m"] + (1 - dampening) * g if "m" in s else g
        g = g + momentum * s["m"] if nesterov else s["m"]
    return p - lr * g


def lion(p, g, s, lr, t, betas=(0.9, 0.99), decay=0.0):
    m = s.get("m", 0)
    s["m"] = betas[1] * m + (1 - betas[1]) * g
    return p * (1 - lr * decay) - lr * np.sign(betas[0] * m + (1 - betas[0]) * g)


def lamb(p, g, s, lr, t, betas=(0.9, 0.999), eps=1e-8, decay=0.0, low=0.01, high=10.0, inside=False, corrected=True):
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    u = s["m"] / (np.sqrt(s["v"] + eps) if inside else np.sqrt(s["v"]) + eps) + decay * p
    of_p, of_u = np.linalg.norm(p), np.linalg.norm(u)
    ratio = min(max(of_p / of_u, low), high) if of_p and of_u else 1.0
    step = lr * np.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t) if corrected else lr
    return p - step * ratio * u


def adagrad(p, g, s, lr, t, lr_decay=0.0, decay=0.0, start=0.0, eps=1e-10):
    g = g + decay * p
    s["sum"] = s.get("sum", start) + g * g
    return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s["sum"]) + eps)


def adadelta(p, g, s, lr, t, rho=0.9, eps=1e-6, decay=0.0):
    g = g + decay * p
    s["v"] = rho * s.get("v", 0) + (1 - rho) * g * g
    delta = np.sqrt(s.get("u", 0) + eps) / np.sqrt(s["v"] + eps) * g
    s["u"] = rho * s.get("u", 0) + (1 - rho) * delta * delta
    return p - lr * delta


def adamax(p, g, s, lr, t, betas=(0.9, 0.999), eps=1e-8, decay=0.0):
    g = g + decay * p
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["u"] = np.maximum(betas[1] * s.get("u", 0), np.abs(g) + eps)
    return p - lr / (1 - betas[0] ** t) * s["m"] / s["u"]


def nadam(p, g, s, lr, t, betas=(0.9, 0.999), eps=1e-8, decay=0.0, psi=4e-3, decoupled=False):
    if decoupled:
        p = p * (1 - lr * decay)
    else:
        g = g + decay * p
    mu, after = (betas[0] * (1 - 0.5 * 0.96 ** (k * psi)) for k in (t, t + 1))
    s["product"] = s.get("product", 1) * mu
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    root = np.sqrt(s["v"] / (1 - betas[1] ** t)) + eps
    first = lr * (1 - mu) / (1 - s["product"]) * g / root
    return p - first - lr * after / (1 - s["product"] * after) * s["m"] / root


def radam(p, g, s, lr, t, betas=(0.9, 0.999), eps=1e-8, decay=0.0, decoupled=False):
    if decoupled:
        p = p * (1 - lr * decay)
    else:
        g = g + decay * p
    s["m"] = betas[0] * s.get("m", 0) + (1 - betas[0]) * g
    s["v"] = betas[1] * s.get("v", 0) + (1 - betas[1]) * g * g
    m, correction = s["m"] / (1 - betas[0] ** t), 1 - betas[1] ** t
    last = 2 / (1 - betas[1]) - 1
    rho = last - 2 * t * betas[1] ** t / correction
    if rho <= 5:
        return p - lr * m
    rect = np.sqrt((rho - 4) * (rho - 2) * last / ((last - 4) * (last - 2) * rho))
    return p - lr * m * rect * np.sqrt(correction) / (np.sqrt(s["v"]) + eps)


def rmsprop(p, g, s, lr, t, alpha=0.99, eps=1e-8, decay=0.0, momentum=0.0, centered=False):
    g = g + decay * p
    s["v"] = alpha * s.get("v", 0) + (1 - alpha) * g * g
    s["m"] = alpha * s.get("m", 0) + (1 - alpha) * g
    u = g / (np.sqrt(s["v"] - s["m"] ** 2 if centered else s["v"]) + eps)
    if momentum:
        u = s["u"] = momentum * s.get("u", 0) + u
    return p - lr * u


def rprop(p, g, s, lr, t, etas=(0.5, 1.2), bounds=(1e-6, 50)):
    sign = np.sign(g * s.get("before", 0))
    factor = np.where(sign > 0, etas[1], np.where(sign < 0, etas[0], 1))
    s["size"] = np.clip(s.get("size", lr) * factor, *bounds)
    s["before"] = np.where(sign < 0, 0, g)
    return p - np.sign(s["before"]) * s["size"]


L2 = {"weight_decay": 0.3}
RULES = [
    ("AdamW", {}, lambda *a: adam(*a)),
    ("adam", {"betas": [0.8, 0.95], "eps": 1e-3}, lambda *a: adam(*a, betas=(0.8, 0.95), eps=1e-3)),
    ("Adam", L2, lambda *a: adam(*a, decay=0.3)),
    ("Adam", {**L2, "adam_w_mode": False}, lambda *a: adam(*a, decay=0.3, decoupled=False)),
    ("AdamW", {**L2, "adam_w_mode": False}, lambda *a: adam(*a, decay=0.3)),
    ("AdamW", {"torch_adam": True}, lambda *a: adam(*a, decay=0.01)),
    ("Adam", {"torch_adam": True, "adam_w_mode": False}, lambda *a: adam(*a, decoupled=False)),
    ("AdamW", {"bias_correction": False, **L2}, lambda *a: adam(*a, decay=0.3, corrected=False)),
    ("SGD", L2, lambda *a: sgd(*a, decay=0.3)),
    ("SGD", {"momentum": 0.9}, lambda *a: sgd(*a, momentum=0.9)),
    ("SGD", {"momentum": 0.9, "dampening": 0.2}, lambda *a: sgd(*a, momentum=0.9, dampening=0.2)),
    ("sgd", {"momentum": 0.9, "nesterov": True, **L2}, lambda *a: sgd(*a, 0.9, 0.3, True)),
    ("Lion", {}, lambda *a: lion(*a)),
    ("Lion", {"betas": [0.8, 0.9], **L2}, lambda *a: lion(*a, betas=(0.8, 0.9), decay=0.3)),
    ("LAMB", {"betas": [0.8, 0.95], "eps": 1e-3, **L2}, lambda *a: lamb(*a, betas=(0.8, 0.95), eps=1e-3, decay=0.3)),
    (
        "Lamb",
        {"eps_inside_sqrt": True, "bias_correction": False, "max_coeff": 0.3, "min_coeff": 0.1},
        lambda *a: lamb(*a, inside=True, corrected=False, low=0.1, high=0.3),
    ),
    ("Adagrad", L2, lambda *a: adagrad(*a, decay=0.3)),
    (
        "adagrad",
        {"lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3},
        lambda *a: adagrad(*a, lr_decay=0.1, start=0.5, eps=1e-3),
    ),
    ("Adadelta", L2, lambda *a: adadelta(*a, decay=0.3)),
    ("Adadelta", {"rho": 0.8, "eps": 1e-3}, lambda *a: adadelta(*a, rho=0.8, eps=1e-3)),
    ("Adamax", {"betas": [0.8, 0.95], "eps": 1e-3, **L2}, lambda *a: adamax(*a, (0.8, 0.95), 1e-3, 0.3)),
    ("NAdam", {"betas": [0.8, 0.95], **L2}, lambda *a: nadam(*a, (0.8, 0.95), decay=0.3)),
    (
        "NAdam",
        {"decoupled_weight_decay": True, "momentum_decay": 0.2, "eps": 1e-3, **L2},
        lambda *a: nadam(*a, eps=1e-3, decay=0.3, psi=0.2, decoupled=True),
    ),
    ("RAdam", L2, lambda *a: radam(*a, decay=0.3)),
    (
        "RAdam",
        {"betas": [0.8, 0.9], "eps": 1e-3, "decoupled_weight_decay": True, **L2},
        lambda *a: radam(*a, (0.8, 0.9), 1e-3, 0.3, True),
    ),
    ("RMSprop", {"alpha": 0.9, "eps": 1e-3, **L2}, lambda *a: rmsprop(*a, alpha=0.9, eps=1e-3, decay=0.3)),
    ("RMSprop", {"centered": True, "momentum": 0.8}, lambda *a: rmsprop(*a, momentum=0.8, centered=True)),
    ("Rprop", {}, lambda *a: rprop(*a)),
    ("Rprop", {"etas": [0.4, 1.5], "step_sizes": [0.01, 0.03]}, lambda *a: rprop(*a, (0.4, 1.5), (0.01, 0.03))),
]


def assert_follows(found, rule, rates=LRS):
    for name, start in WEIGHTS.items():
        p, state = start, {}
        for t, (grads, lr) in enumerate(zip(GRADS, rates.astype(float), strict=True), start=1):
            p = rule(p, grads[name], state, lr, t)
            np.testing.assert_allclose(found[t - 1][name], p, rtol=1e-6, atol=1e-8)


def values_of(schedule):
    """What the optimizer reads at each update, in its fp32 digits; `tests/schedules` tests the values."""
    return np.asarray(schedule(jnp.arange(STEPS)))


@pytest.mark.parametrize(("kind", "params", "rule"), RULES)
def test_update_rule(kind, params, rule):
    optimizer = build_optimizer(config_of(kind, params), schedule=schedule_of_the_test).transformation
    assert_follows(steps_of(optimizer), rule)


ONE_CYCLE = {"cycle_min_lr": float(LRS[0]), "cycle_max_lr": float(LRS[-1]), "cycle_first_step_size": STEPS - 1}
TORCH_CYCLE = {"base_lr": float(LRS[0]), "max_lr": float(LRS[-1]), "step_size_up": STEPS - 1}
"""Both rise as the rates of this test do, while the momentum falls."""


@pytest.mark.parametrize(
    ("kind", "params", "rule"),
    [
        ("Adam", {}, lambda *a, b: adam(*a, betas=b)),
        ("Adam", {"bias_correction": False}, lambda *a, b: adam(*a, betas=b, corrected=False)),
        ("Lion", {}, lambda *a, b: lion(*a, betas=b)),
        ("Lamb", {}, lambda *a, b: lamb(*a, betas=b)),
        ("Adamax", {}, lambda *a, b: adamax(*a, betas=b)),
        ("NAdam", {}, lambda *a, b: nadam(*a, betas=b)),
        ("RAdam", {}, lambda *a, b: radam(*a, betas=b)),
        ("SGD", {"momentum": 0.6}, lambda *a, b: sgd(*a, momentum=0.6)),
    ],
)
def test_one_cycle_cycles_the_first_beta_and_sets_the_second(kind, params, rule):
    """DeepSpeed starts from the lowest momentum, and leaves optimizers without betas alone."""
    scheduler = {"type": "OneCycle", "params": ONE_CYCLE}
    config = config_of(kind, params, scheduler=scheduler)
    built = build_optimizer(config)
    assert (
        (built.momentum is None)
        == (kind == "SGD")
        == (["no effect with SGD" in note for note in config.notes] == [True])
    )
    momenta = np.full(STEPS, 0.6) if built.momentum is None else values_of(built.momentum).astype(float)
    rates = values_of(built.learning_rate)
    assert_follows(steps_of(built.transformation), lambda *a: rule(*a, b=(momenta[a[-1] - 1], 0.99)), rates)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("Adam", lambda *a, m: adam(*a, betas=(m, 0.999))),
        ("SGD", lambda *a, m: sgd(*a, momentum=m)),
        ("RMSprop", lambda *a, m: rmsprop(*a, momentum=m)),
    ],
)
def test_torchs_cycles_reach_every_momentum(kind, rule):
    built = build_optimizer(config_of(kind, scheduler={"type": "CyclicLR", "params": TORCH_CYCLE}))
    momenta, rates = values_of(built.momentum).astype(float), values_of(built.learning_rate)
    assert_follows(steps_of(built.transformation), lambda *a: rule(*a, m=momenta[a[-1] - 1]), rates)


def newton_schulz(x):
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    return x


def muon(p, grads, lr, decay):
    m = np.zeros_like(p)
    for g in grads:
        m = 0.95 * m + 0.05 * g
        # torch's matrix, [out, in], has the shape ratio that counts
        u = newton_schulz((0.05 * g + 0.95 * m).T) * max(1, p.shape[1] / p.shape[0]) ** 0.5
        p = p * (1 - lr * decay) - lr * u.T
        yield p


SHAPES = {
    "up": (4, 6),
    "down": (6, 4),
    "stack": (3, 4, 5),  # of layers, along dimension 0
    "inner": (4, 2, 5),  # of layers, along dimension 1
    "experts": (2, 5, 3),
    "conv": (3, 1, 2, 4),
    "embed": (5, 3),
    "lm_head": (3, 5),
    "wte": (5, 2),
    "bias": (4,),
}
VIEWS = {
    "up": lambda x: [x],
    "down": lambda x: [x],
    "stack": list,
    "inner": lambda x: [x[:, i] for i in range(2)],
    "experts": list,
}


def test_muon_orthogonalises_each_hidden_matrix():
    random = np.random.default_rng(1)
    weights = {name: random.standard_normal(shape) for name, shape in SHAPES.items()}
    grads = [{name: random.standard_normal(shape) for name, shape in SHAPES.items()} for _ in range(5)]
    config = config_of("Muon", {"muon_lr": 0.1, "adam_lr": 0.01, "weight_decay": 0.2})
    dims = {**dict.fromkeys(SHAPES, ()), "stack": (0,), "inner": (1,)}
    optimizer = build_optimizer(config, parameters=dims).transformation
    update = jax.jit(optimizer.update)
    found = steps_of(optimizer, weights, grads, update)
    rate, adams = float(np.float32(0.1)), float(np.float32(0.01))
    for name, view in VIEWS.items():
        for i, matrix in enumerate(view(weights[name])):
            for t, expected in enumerate(muon(matrix, [view(g[name])[i] for g in grads], rate, 0.2)):
                np.testing.assert_allclose(view(np.asarray(found[t][name]))[i], expected, rtol=1e-6, atol=1e-8)
    flat = [g["conv"].reshape(6, 4) for g in grads]  # scaled by its window, 3 x 1, as DeepSpeed does
    scale = 3**0.5
    for t, expected in enumerate(muon(weights["conv"].reshape(6, 4) / scale, flat, rate, 0.2)):
        np.testing.assert_allclose(found[t]["conv"].reshape(6, 4), expected * scale, rtol=1e-6, atol=1e-8)
    for name in ("embed", "lm_head", "wte", "bias"):
        p, state = weights[name], {}
        for t, step in enumerate(grads):
            p = adam(p, step[name], state, adams, t + 1, (0.9, 0.95), 1e-10, 0.2)
            np.testing.assert_allclose(found[t][name], p, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("params", "schedule", "rates"),
    [
        ({}, None, (0.02, 3e-4)),
        ({"lr": 0.1}, None, (0.1, 0.1)),
        ({"lr": 0.1, "muon_lr": 0.3, "adam_lr": 0.2}, None, (0.3, 0.2)),
        ({"lr": 0.1, "muon_lr": 0.4}, lambda k: 0.05, (0.2, 0.05)),  # half the rate, for both
    ],
)
def test_the_two_rates_of_muon(params, schedule, rates):
    built = build_optimizer(config_of("Muon", {"momentum": 0.0, **params}), schedule=schedule)
    start = {"kernel": np.eye(2), "bias": np.ones(2)}
    after = steps_of(built.transformation, start, [{"kernel": np.eye(2), "bias": np.ones(2)}])[0]
    step = newton_schulz(np.eye(2))[0, 0]
    np.testing.assert_allclose(1 - after["kernel"][0, 0], rates[0] * step, rtol=1e-6)
    np.testing.assert_allclose(1 - after["bias"][0], rates[1], rtol=1e-6)


def test_moments_are_fp32_and_shaped_like_the_parameters():
    state = build_optimizer(config_of("AdamW")).transformation.init({"w": jnp.ones((2, 3), jnp.float32)})
    arrays = [x for x in jax.tree.leaves(state) if x.ndim]
    assert [(x.shape, x.dtype) for x in arrays] == [((2, 3), jnp.float32)] * 2


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"type": "SGD", "params": {"nesterov": True}}, "`optimizer.params.nesterov` needs a `momentum` above 0"),
        (
            {"type": "SGD", "params": {"nesterov": True, "momentum": 0.9, "dampening": 0.1}},
            "`optimizer.params.nesterov` needs a `dampening` of 0",
        ),
        ({"type": "Lamb", "params": {"max_coeff": 1e-3}}, "`optimizer.params.min_coeff` = 0.01 .the default. is above"),
        ({"type": "Rprop", "params": {"etas": [2, 1]}}, "must be a list of two numbers at least 0, the smaller"),
        ({"type": "Adam", "params": {"amsgrad": True}}, "pass optax.amsgrad as the optimizer"),
        ({"type": "Lamb", "params": {"momentum": 0.9}}, "unknown key `optimizer.params.momentum`"),
        ({"type": "OneBitLamb"}, "= 'OneBitLamb' is refused: use Lamb"),
        ({"type": "ZeroOneAdam"}, "= 'ZeroOneAdam' is refused: use AdamW"),
        ({"type": "MuSGD"}, "is refused: use SGD, with an `lr_multiplier` in `jzero.param_groups`"),
        ({"type": "Sunshine"}, "or pass an optax optimizer to jzero.initialize"),
    ],
)
def test_what_cannot_be_built_is_refused(optimizer, message):
    with pytest.raises(ConfigError, match=message):
        Config.load({"optimizer": optimizer})


def test_sections_that_do_not_fit_each_other_are_refused():
    with pytest.raises(ConfigError, match="the configuration has no `optimizer`"):
        build_optimizer(Config.load({}))
    scheduler = {"type": "CyclicLR", "params": TORCH_CYCLE}
    with pytest.raises(ConfigError, match="neither betas nor a momentum to cycle; set it to false"):
        build_optimizer(config_of("Adagrad", scheduler=scheduler))
    with pytest.raises(ConfigError, match=r"`optimizer\.params\.lr` is 0, so nothing tells"):
        build_optimizer(config_of("Muon", {"lr": 0, "muon_lr": 0.1}), schedule=schedule_of_the_test)
