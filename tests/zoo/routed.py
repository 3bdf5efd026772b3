"""Mixtures of experts: each token goes to the two experts that score highest, by a grouped product or by masks."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from tests.zoo.case import Case, Pure, floats

D, HIDDEN, EXPERTS, TOP = 33, 41, 16, 2  # experts of 21648 elements each way
SHAPES = {"router": (D, EXPERTS), "up": (EXPERTS, D, HIDDEN), "down": (EXPERTS, HIDDEN, D)}


def ragged(x, router, up, down):
    """Sorts tokens by expert, so that each expert multiplies a contiguous group."""
    weights, chosen = jax.lax.top_k(jax.nn.softmax(x @ router), TOP)
    order = jnp.argsort(chosen.reshape(-1))
    sizes = jnp.bincount(chosen.reshape(-1), length=EXPERTS).astype(jnp.int32)
    rows = x[order // TOP]
    y = jax.lax.ragged_dot(jnp.tanh(jax.lax.ragged_dot(rows, up, sizes)), down, sizes)
    y = y[jnp.argsort(order)].reshape(*chosen.shape, D)
    return (weights[..., None] * y).sum(1)


def dense(x, router, up, down, capacity=3):
    """Dispatches by one-hot products with a limited capacity, and balances the load in the loss.

    Capacity and balance are those of a device's own tokens.
    """
    scores = jax.nn.softmax(x @ router)
    weights, chosen = jax.lax.top_k(scores, TOP)
    to_expert = jax.nn.one_hot(chosen, EXPERTS, dtype=jnp.float32).sum(1)
    position = (jnp.cumsum(to_expert, 0) * to_expert).astype(jnp.int32)  # from 1
    slots = jax.nn.one_hot(position - 1, capacity, dtype=jnp.float32)
    hidden = jnp.tanh(jnp.einsum("tec,td,edf->ecf", slots, x, up))
    gates = jnp.zeros_like(scores).at[jnp.arange(x.shape[0])[:, None], chosen].set(weights)
    y = jnp.einsum("tec,te,ecf,efd->td", slots, gates, hidden, down)
    return y, (to_expert.mean(0) * scores.mean(0)).sum() * EXPERTS


def make(key):
    keys = jax.random.split(key, 3)
    return {n: jax.random.normal(k, s) * 0.2 for k, (n, s) in zip(keys, SHAPES.items(), strict=True)}


class Experts(nnx.Module):
    def __init__(self, rngs, route):
        self.route = route
        self.router, self.up, self.down = (nnx.Param(w) for w in make(rngs.params()).values())

    def __call__(self, x):
        return self.route(x.reshape(-1, D), self.router[...], self.up[...], self.down[...])


class LinenExperts(nn.Module):
    route: object

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.normal(0.2)
        return self.route(x.reshape(-1, D), *[self.param(name, init, shape) for name, shape in SHAPES.items()])


def squares(model, batch):
    return (model(batch["x"]) ** 2).mean()


def balanced(model, batch):
    y, balance = model(batch["x"])
    return (y**2).mean() + 0.01 * balance


BATCH = {"x": floats(3, D)}
CASES = {
    "nnx ragged": Case(lambda rngs: Experts(rngs, ragged), squares, BATCH),
    "nnx dense": Case(lambda rngs: Experts(rngs, dense), balanced, BATCH, per_device=True),
    "linen ragged": Case(LinenExperts(ragged), squares, BATCH),
    "linen dense": Case(LinenExperts(dense), balanced, BATCH, per_device=True),
    "pure ragged": Case(Pure(make), lambda p, batch: (ragged(batch["x"].reshape(-1, D), **p) ** 2).mean(), BATCH),
}
