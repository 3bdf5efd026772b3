"""The loss of the next token: from hidden states where a model offers them, from logits where it does not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jzero
from jzero.jaxpr import every_equation
from jzero.models import GPT, GPTConfig, GPTLinen, build, next_token_loss
from jzero.models.losses import linen_next_token_loss
from jzero.ops import chunked_loss
from tests.models.common import uneven, with_params

VOCAB, ROWS, T = 61, 4, 12
BATCH = {"tokens": np.random.default_rng(0).integers(0, VOCAB, (ROWS, T + 1), dtype=np.int32)}
BLOCKS = {"vocab_size": VOCAB, "seq_len": T, "d_model": 16, "n_layer": 2, "n_head": 2}
FAMILIES = {
    "gpt": {"family": "gpt", **BLOCKS},
    "llama": {"family": "llama", **BLOCKS, "n_kv_head": 1, "d_ff": 24},
    "llama tied": {"family": "llama", **BLOCKS, "n_kv_head": 1, "d_ff": 24, "tie_head": True},
    "lstm": {"family": "lstm", "vocab_size": VOCAB, "d_model": 16, "n_layer": 1},
}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Eight tokens at a time."""
    monkeypatch.setattr(chunked_loss, "CHUNK_BYTES", 4 * VOCAB * 8)
    monkeypatch.setattr(chunked_loss, "MIN_CHUNK", 8)


def makes_all_logits(fn, *args):
    """Whether an array of all logits is anywhere in a function."""
    sizes = [v.aval.size for eqn, *_ in every_equation(jax.make_jaxpr(fn)(*args)) for v in eqn.outvars]
    return ROWS * T * VOCAB in sizes


def assert_same(by_chunks, from_logits, params):
    assert not makes_all_logits(jax.grad(by_chunks), params)
    assert makes_all_logits(from_logits, params)
    (value, grads), (expected, exact) = (jax.jit(jax.value_and_grad(f))(params) for f in (by_chunks, from_logits))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), grads, exact)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_s_loss_is_that_of_its_logits(name):
    built = build(FAMILIES[name])
    model = built.factory(nnx.Rngs(0))
    by_chunks = lambda p: built.loss_fn(with_params(model, p), BATCH)
    from_logits = lambda p: next_token_loss(lambda tokens: with_params(model, p)(tokens), BATCH)
    assert_same(by_chunks, from_logits, uneven(model))


def test_a_linen_model_s_loss_is_that_of_its_logits():
    model = GPTLinen(GPTConfig(**BLOCKS, dropout=0.5))
    params = model.init(jax.random.key(0), BATCH["tokens"][:, :-1])
    rngs = {"dropout": jax.random.key(1)}

    def loss(model, batch, train):
        return next_token_loss(lambda tokens: model(tokens, deterministic=not train), batch)

    values = []
    for train in (True, False):
        by_chunks, from_logits = (
            lambda p, fn=fn, train=train: nn.apply(lambda m: fn(m, BATCH, train), model)(p, rngs=rngs)
            for fn in (linen_next_token_loss, loss)
        )
        assert_same(by_chunks, from_logits, params)
        values.append(float(by_chunks(params)))
    assert values[0] != values[1]  # with dropout and without


def test_a_subclass_with_a_call_of_its_own_is_asked_for_logits():
    class Scaled(GPT):
        def __call__(self, tokens):
            return 2 * super().__call__(tokens)

    model = Scaled(GPTConfig(**BLOCKS), rngs=nnx.Rngs(0))
    expected = next_token_loss(lambda tokens: model(tokens), BATCH)
    assert float(next_token_loss(model, BATCH)) == float(expected)


def test_a_rematerialised_model_loses_nothing():
    model = GPT(GPTConfig(**BLOCKS), rngs=nnx.Rngs(0))
    for modules in ("Block", "GPT"):
        loss = next_token_loss(jzero.remat(model, modules), BATCH)
        np.testing.assert_allclose(loss, next_token_loss(model, BATCH), rtol=1e-6)


def test_any_function_may_give_the_logits():
    loss = next_token_loss(lambda tokens: jnp.zeros((*tokens.shape, VOCAB), jnp.float32), BATCH)
    np.testing.assert_allclose(loss, np.log(VOCAB), rtol=1e-6)
