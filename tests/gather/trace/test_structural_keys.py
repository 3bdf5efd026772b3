"""Uses of parameters that compute the same are told from those that do not, however small the difference."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from jzero.gather.trace.structural_keys import structural_key
from jzero.gather.unit.deferred import DeferredParam
from jzero.sharding.placement import Placement
from tests import helpers


def block(w, x):
    return x + jnp.tanh(x @ w) * 0.0


def keys(first, second, **changes):
    """Keys of two rematerialised regions one after the other, each of a parameter of its own."""

    def both(a, b, x):
        return jax.checkpoint(second)(b, jax.checkpoint(first)(a, x))

    w = jnp.zeros((4, 4))
    eqns = [eqn for eqn in jax.make_jaxpr(both)(w, w, jnp.zeros((2, 4))).eqns if "remat" in eqn.primitive.name]
    a = DeferredParam(0, "a", Placement((4, 4), 0, 2), jnp.dtype("float32"))
    b = dataclasses.replace(a, leaf=1, name="b", **changes)
    return [
        structural_key(eqn, [lazy if v.aval.shape == (4, 4) else True for v in eqn.invars])
        for eqn, lazy in zip(eqns, (a, b), strict=True)
    ]


def test_equal_blocks_of_different_parameters_are_alike():
    first, second = keys(block, lambda w, x: x + jnp.tanh(x @ w) * 0.0)
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    "other",
    [
        lambda w, x: x + jnp.tanh(x @ w) * -0.0,
        lambda w, x: x + jnp.tanh(x @ w) * 1.0,
        lambda w, x: jnp.tanh(x @ w) + jnp.tanh(x @ w) * 0.0,
        lambda w, x: x + jnp.tanh(w.sum() * x) * 0.0,
        lambda w, x: x + jnp.tanh(x @ w.T) * 0.0,
        jax.named_scope("there")(block),
        jax.checkpoint(block),
    ],
)
def test_blocks_that_compute_something_else_are_not(other):
    first, second = keys(block, other)
    assert first != second


def test_the_order_of_operands_counts():
    first, second = keys(lambda w, x: x @ w - x, lambda w, x: x - x @ w)
    assert first != second


@pytest.mark.parametrize(
    "change",
    [
        {"placement": Placement((4, 4), 1, 2)},
        {"casts": (jnp.dtype("bfloat16"),)},
        {"trainable": False},
        {"in_advance": True},
        {"on_host": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_layout_of_the_parameter_counts(change):
    first, second = keys(block, block, **change)
    assert first != second


class Layers:
    """As many equal rematerialised layers as asked for; `traced` grows whenever one is differentiated."""

    def __init__(self, n_layers):
        self.n_layers = n_layers
        self.traced = 0

    def init(self, key, batch):
        return [jax.random.normal(k, (16, 16)) / 4 for k in jax.random.split(key, self.n_layers)]

    def loss(self, params, batch):
        def backward(y, grad):
            self.traced += 1
            return (grad * (1 - y**2),)

        tanh = jax.custom_vjp(jnp.tanh)
        tanh.defvjp(lambda x: (jnp.tanh(x),) * 2, backward)
        layer = jax.checkpoint(lambda w, x: x + tanh(x @ w))
        x = batch["x"]
        for w in params:
            x = layer(w, x)
        return (x**2).mean()


def test_equal_layers_are_differentiated_once():
    def n_traced(n_layers):
        model = Layers(n_layers)
        engine = jzero.initialize(
            model=model,
            loss_fn=model.loss,
            config=helpers.config(3, 8),
            sample_batch={"x": np.ones((8, 16), np.float32)},
        )
        model.traced = 0
        engine.functional.step.trace(engine.functional.state, engine.functional.batch)
        return model.traced

    assert 0 < n_traced(2) == n_traced(5)
