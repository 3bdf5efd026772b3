"""What a program's parameters act on is followed through rules, loops and branches."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.jaxpr.weights import acted_on, product_dtypes

W, S = jnp.ones((3, 3)), jnp.ones(())
X, Y = jnp.ones((2, 3)), jnp.zeros((2, 3))


@jax.custom_vjp
def with_rule(w, x):
    return x @ w


with_rule.defvjp(lambda w, x: (x @ w, (w, x)), lambda res, g: (res[1].T @ g, g @ res[0].T))


def in_loop(w, x):
    return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, None, 2)[0]


def over_layers(w, x):
    return jax.lax.scan(lambda h, layer: (h + layer, None), x, w[:2, None])[0]


def twice_carried(w, x):
    """The input meets the weight in the second round only."""
    return jax.lax.fori_loop(0, 2, lambda _, c: (c[1], c[1] @ w, c[2]), (x, x * 0, w))[1]


def until_large(w, x):
    return jax.lax.while_loop(lambda h: (h < 9).all(), lambda h: h @ w, x)


MODELS = {
    "product": lambda w, x: x @ w,
    "bias": lambda w, x: x + w[0],
    "rule": with_rule,
    "under jit and remat": jax.jit(jax.checkpoint(lambda w, x: jnp.sin(x @ jnp.cos(w)))),
    "loop": in_loop,
    "loop over layers": over_layers,
    "carried": twice_carried,
    "loop of unknown length": until_large,
    "branch": lambda w, x: jax.lax.cond(x.sum() > 0, lambda: x @ w, lambda: x),
    "lookup": lambda w, x: w[x.astype(jnp.int32)].sum(-1),
    "one number of all weights": lambda w, x: x * w.sum(),
}
LOSSES = {
    "squared": lambda out, y, w, s: ((out - y) ** 2).mean(),
    "scaled": lambda out, y, w, s: (jnp.exp(-s) * (out - y) ** 2).mean() + s,
    "regularised": lambda out, y, w, s: ((out - y) ** 2).mean() + 0.1 * (w**2).sum(),
    "weighted": lambda out, y, w, s: (out * y).sum() / y.sum(),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", MODELS)
def test_inputs_are_acted_on_and_targets_are_not(model, loss):
    def total(w, s, x, y):
        return LOSSES[loss](MODELS[model](w, x), y, w, s)

    assert acted_on(jax.make_jaxpr(total)(W, S, X, Y), [0, 1]) == {2}


def test_what_is_input_and_target_is_acted_on():
    autoencoder = lambda w, x: ((x @ w - x) ** 2).mean()
    assert acted_on(jax.make_jaxpr(autoencoder)(W, X), [0]) == {1}
    noised = lambda w, x, noise: (((x + noise) @ w - noise) ** 2).mean()
    assert acted_on(jax.make_jaxpr(noised)(W, X, Y), [0]) == {1, 2}


def test_products_are_found_inside_of_loops_and_rules():
    def program(w, x):
        return in_loop(w, with_rule(w, x)).sum()

    found = lambda dtype: product_dtypes(jax.make_jaxpr(program)(W.astype(dtype), np.ones((2, 3), dtype)))
    assert (found(jnp.float32), found(jnp.bfloat16)) == (["float32"] * 2, ["bfloat16"] * 2)
