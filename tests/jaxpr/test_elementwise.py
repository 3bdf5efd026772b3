"""Which optimizers update element by element, and that a piece gets what the whole would have given it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jzero.jaxpr import evaluate, trace
from jzero.jaxpr.elementwise import is_elementwise, run_on_pieces

SHAPE = (6, 5)
PIECEWISE = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.1),
    "adamw": optax.adamw(optax.linear_schedule(0.1, 0.0, 10), weight_decay=0.1),
    "lion": optax.lion(0.1),
    "adagrad": optax.adagrad(0.1),
    "rmsprop": optax.rmsprop(0.1),
    "clipped values": optax.chain(optax.clip(0.5), optax.sgd(0.1)),
}
WHOLE = {
    "a trust ratio": optax.lamb(0.1),
    "a factored moment": optax.adafactor(0.1, min_dim_size_to_factor=2),
    "a product of matrices": optax.contrib.muon(0.1),
    "noise": optax.chain(optax.add_noise(0.1, 0.5, key=0), optax.sgd(0.1)),
    "the norm of the gradient": optax.chain(optax.clip_by_block_rms(1.0), optax.sgd(0.1)),
}


def update_of(optimizer):
    weights = jnp.asarray(np.random.default_rng(0).normal(size=SHAPE), jnp.float32)
    state = optimizer.init(weights)

    def update(grads, state, weights):
        with jax.numpy_dtype_promotion("standard"):
            updates, state = optimizer.update(grads, state, weights)
            return optax.apply_updates(weights, updates), [x for x in jax.tree.leaves(state) if x.shape == SHAPE]

    program, _ = trace(update, weights, state, weights)
    operands = [jnp.cos(weights), *jax.tree.leaves(state), weights]
    return program, operands


@pytest.mark.parametrize("name", PIECEWISE)
def test_a_piece_is_updated_as_the_whole_would_be(name):
    program, operands = update_of(PIECEWISE[name])
    large = [x.shape == SHAPE for x in operands]
    assert is_elementwise(program, large, SHAPE)
    pieces = [x[2:4] if is_large else x for x, is_large in zip(operands, large, strict=True)]
    wholes = evaluate(program, operands)
    for whole, piece in zip(wholes, run_on_pieces(program, pieces, (2, 5)), strict=True):
        np.testing.assert_allclose(piece, whole[2:4], rtol=1e-6)


@pytest.mark.parametrize("name", WHOLE)
def test_what_needs_the_whole_is_found_out(name):
    program, operands = update_of(WHOLE[name])
    assert not is_elementwise(program, [x.shape == SHAPE for x in operands], SHAPE)
