"""Every optimizer under ZeRO gives what it gives on one device, and its state is divided like the parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero
from jzero.config import Config
from jzero.errors import ConfigError
from jzero.optim import build_optimizer
from tests.helpers import assert_close, config, host, mesh_of

KINDS = ["Adam", "Lamb", "Lion", "Muon", "SGD", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"]
ROWS, D_IN, D_HIDDEN, D_OUT, LAYERS = 16, 129, 131, 16, 3
RNG = np.random.default_rng(0)
BATCH = {"x": RNG.standard_normal((ROWS, D_IN), np.float32), "y": RNG.standard_normal((ROWS, D_OUT), np.float32)}


class Sides:
    """A small model for each optimizer, side by side: with a leaf that is padded and one that stays whole."""

    def init(self, key, batch):
        def side(key):
            return {"kernel": jax.random.normal(key, (D_IN, D_HIDDEN)) / 11, "bias": jnp.zeros(D_HIDDEN)}

        return {kind: side(k) for kind, k in zip(KINDS, jax.random.split(key, len(KINDS)), strict=True)}


def sum_of_errors(params, batch):
    return sum(((batch["x"] @ p["kernel"] + p["bias"] - batch["x"][:, :1]) ** 2).mean() for p in params.values())


def all_kinds():
    extras = {"SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9, "eps": 0.1}, "Muon": {}, "Rprop": {}}
    parts = {}
    for kind in KINDS:
        params = {"lr": 1e-2, **extras.get(kind, {})} | ({} if kind == "Rprop" else {"weight_decay": 0.1})
        parts[kind] = build_optimizer(Config.load({"optimizer": {"type": kind, "params": params}})).transformation
    return optax.partition(parts, {kind: kind for kind in KINDS})


def one_device(loss, params, optimizer, n_steps):
    def step(params, state):
        grads = jax.grad(loss)(params, BATCH)
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    step, state = jax.jit(step), optimizer.init(params)
    for _ in range(n_steps):
        params, state = step(params, state)
    return host(params)


def shapes_by_spec(tree):
    """For each array, its shape and whether it is divided."""
    return [(x.shape, "shard" in str(x.sharding.spec)) for x in jax.tree.leaves(tree) if x.ndim]


def test_every_optimizer_equals_one_device():
    params = Sides().init(jax.random.key(1), BATCH)
    engine = jzero.initialize(
        model=Sides(),
        loss_fn=sum_of_errors,
        config=config(3, ROWS),
        sample_batch=BATCH,
        optimizer=all_kinds(),
        params=params,
        mesh=mesh_of(8),
    )
    divided = {shape for shape, is_divided in shapes_by_spec(engine.state.params) if is_divided}
    assert divided == {(D_IN, 136)}  # padded
    assert all(is_divided == (shape in divided) for shape, is_divided in shapes_by_spec(engine.state.opt_state))
    for _ in range(3):
        engine.train_batch(BATCH)
    after = one_device(sum_of_errors, params, all_kinds(), 3)
    assert_close(host(engine.params), after, rtol=1e-4, atol=1e-5)


class Stack:
    """Layers that a scan walks along, between an embedding and a head."""

    def init(self, key, batch):
        shapes = {"embed": (D_IN, 16), "layers": (LAYERS, 16, 16), "lm_head": (16, D_OUT), "bias": (16,)}
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(k, s) / 4 for k, (name, s) in zip(keys, shapes.items(), strict=True)}


def stack_error(params, batch):
    h, _ = jax.lax.scan(lambda h, w: (h + jnp.tanh(h @ w), None), batch["x"] @ params["embed"], params["layers"])
    return (((h + params["bias"]) @ params["lm_head"] - batch["y"]) ** 2).mean()


def stack_engine(**sections):
    return jzero.initialize(
        model=Stack(),
        loss_fn=stack_error,
        config=config(3, ROWS, **sections),
        sample_batch=BATCH,
        mesh=mesh_of(8),
    )


MUON = {
    "optimizer": {"type": "Muon", "params": {"lr": 0.02, "adam_lr": 1e-3, "weight_decay": 0.1}},
    "jzero": {"param_groups": [{"match": "bias|lm_head", "weight_decay": 0.0, "lr_multiplier": 0.5}]},
}


def test_the_configuration_knows_stacked_layers_and_groups():
    engine = stack_engine(**MUON)
    params = host(engine.params)
    names = {"embed": (), "layers": (0,), "lm_head": (), "bias": ()}
    alone = build_optimizer(Config.load(MUON), parameters=names).transformation
    after = one_device(stack_error, jax.tree.map(jnp.asarray, params), alone, 2)
    metrics = [engine.train_batch(BATCH) for _ in range(2)]
    assert_close(host(engine.params), after, rtol=1e-4, atol=1e-5)
    assert float(metrics[-1]["learning_rate"]) == pytest.approx(0.02)  # the base rate
    assert "momentum" not in metrics[-1]
    assert not np.allclose(after["layers"], params["layers"], atol=1e-3)


def test_a_cycled_momentum_is_reported_and_drives_the_update():
    cycle = {"cycle_min_lr": 0.01, "cycle_max_lr": 0.05, "cycle_first_step_size": 4}
    sections = {"scheduler": {"type": "OneCycle", "params": cycle}}
    engine = stack_engine(**sections)
    params = host(engine.params)
    built = build_optimizer(Config.load({"optimizer": config(3, ROWS)["optimizer"], **sections}))
    after = one_device(stack_error, jax.tree.map(jnp.asarray, params), built.transformation, 3)
    metrics = [engine.train_batch(BATCH) for _ in range(3)]
    np.testing.assert_allclose([float(m["momentum"]) for m in metrics], [0.8, 0.875, 0.85], rtol=1e-6)
    np.testing.assert_allclose([float(m["learning_rate"]) for m in metrics], [0.01, 0.02, 0.03], rtol=1e-6)
    assert_close(host(engine.params), after, rtol=1e-4, atol=1e-5)


def test_groups_are_for_the_optimizer_of_the_configuration():
    with pytest.raises(ConfigError, match=r"another one was passed as `optimizer=`; use optax\.masked"):
        jzero.initialize(
            model=Stack(),
            loss_fn=stack_error,
            config=config(3, ROWS, jzero={"param_groups": [{"match": "bias", "weight_decay": 0}]}),
            sample_batch=BATCH,
            optimizer=optax.sgd(0.1),
            mesh=mesh_of(8),
        )
