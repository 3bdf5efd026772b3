"""Cells over time: every weight is a constant of the loop, to be gathered in front of it and not at each step."""

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from tests.zoo.case import Case, Pure, floats

D, HIDDEN, LENGTH = 129, 136, 5


class Recurrent(nnx.Module):
    def __init__(self, rngs, cell):
        self.rnn = nnx.RNN(cell(D, HIDDEN, rngs=rngs))
        self.head = nnx.Linear(HIDDEN, 131, rngs=rngs)

    def __call__(self, x):
        return self.head(self.rnn(x))


class LinenRecurrent(nn.Module):
    cell: type

    @nn.compact
    def __call__(self, x):
        return nn.Dense(131)(nn.RNN(self.cell(HIDDEN))(x))


class Bidirectional(nn.Module):
    @nn.compact
    def __call__(self, x):
        both = nn.Bidirectional(nn.RNN(nn.SimpleCell(HIDDEN)), nn.RNN(nn.GRUCell(HIDDEN)))
        return nn.Dense(131)(both(x))


def elman(params, batch):
    """A loop written by hand; the hidden state starts as a parameter."""

    def step(h, x):
        h = jnp.tanh(x @ params["in"] + h @ params["hidden"])
        return h, h @ params["out"]

    start = jnp.broadcast_to(params["start"], (batch["x"].shape[0], HIDDEN))
    return (jax.lax.scan(step, start, batch["x"].swapaxes(0, 1))[1] ** 2).mean()


def make_elman(key):
    keys = jax.random.split(key, 4)
    shapes = {"in": (D, HIDDEN), "hidden": (HIDDEN, HIDDEN), "out": (HIDDEN, 131), "start": (HIDDEN,)}
    return {name: jax.random.normal(k, shape) / 12 for k, (name, shape) in zip(keys, shapes.items(), strict=True)}


def squares(model, batch):
    return (model(batch["x"]) ** 2).mean()


BATCH = {"x": floats(LENGTH, D)}
CASES = {
    "nnx optimised lstm": Case(lambda rngs: Recurrent(rngs, nnx.OptimizedLSTMCell), squares, BATCH),
    "nnx gru": Case(lambda rngs: Recurrent(rngs, nnx.GRUCell), squares, BATCH),
    "linen lstm": Case(LinenRecurrent(nn.LSTMCell), squares, BATCH),
    "linen gru and its like, both directions": Case(Bidirectional(), squares, BATCH),
    "a loop written by hand": Case(Pure(make_elman), elman, BATCH),
}
