"""Packed rows: documents do not see each other, and what counts is what the batch says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jzero.errors import ModelError
from jzero.models import GPT, LSTM, GPTConfig, GPTLinen, Llama, LlamaConfig, LSTMConfig, next_token_loss

SIZES = {"vocab_size": 64, "seq_len": 12, "d_model": 16, "n_layer": 2, "n_head": 2}
MODELS = {
    "gpt": lambda: GPT(GPTConfig(**SIZES), rngs=nnx.Rngs(0)),
    "gpt, scanned, remat": lambda: GPT(GPTConfig(**SIZES, scan_layers=True, remat=True), rngs=nnx.Rngs(0)),
    "linen, scanned, remat": lambda: _bound(GPTLinen(GPTConfig(**SIZES, scan_layers=True, remat=True))),
    "llama": lambda: Llama(LlamaConfig(**SIZES, n_kv_head=1, d_ff=16), rngs=nnx.Rngs(0)),
    "llama, scanned": lambda: Llama(LlamaConfig(**SIZES, d_ff=16, scan_layers=True), rngs=nnx.Rngs(0)),
}
FIRST, SECOND = [5, 9, 3, 7, 1], [2, 8, 6, 4, 11, 10]


def _bound(model: GPTLinen) -> GPTLinen:
    return model.bind(model.init(jax.random.key(0), jnp.zeros((1, 4), jnp.int32)))


def row(*documents: list[int], length: int = 13) -> dict[str, jax.Array]:
    fields = {
        "tokens": [t for ids in documents for t in ids],
        "segment_ids": [n for n, ids in enumerate(documents, 1) for _ in ids],
        "positions": [p for ids in documents for p in range(len(ids))],
        "loss_mask": [1 for ids in documents for _ in ids],
    }
    return {name: jnp.asarray([[*x, *[0] * (length - len(x))]], jnp.int32) for name, x in fields.items()}


def documents_of(batch):
    return {key: batch[key][:, :12] for key in ("segment_ids", "positions")}


@pytest.mark.parametrize("name", MODELS)
def test_a_document_is_as_if_it_were_alone(name):
    model = MODELS[name]()
    call = jax.jit(lambda tokens, documents: model(tokens, **documents))
    logits = lambda batch: np.asarray(call(batch["tokens"][:, :12], documents_of(batch)))[0]
    packed, changed = logits(row(FIRST, SECOND)), logits(row([7, 7, 7, 7, 7], SECOND))
    np.testing.assert_array_equal(packed[5:11], changed[5:11])  # to the bit
    assert not (packed[:5] == changed[:5]).all()
    alone = np.asarray(call(row(SECOND)["tokens"][:, :12], {}))[0]  # what comes later is not seen
    np.testing.assert_allclose(packed[5:11], alone[:6], atol=2e-6)
    loss_of = jax.jit(lambda batch: next_token_loss(model, batch))
    loss, one, two = (loss_of(row(*documents)) for documents in ((FIRST, SECOND), (FIRST,), (SECOND,)))
    assert [float(x.weight) for x in (loss, one, two)] == [9, 4, 5]
    np.testing.assert_allclose(loss.total, one.total + two.total, rtol=1e-5)
    of_second = lambda first: {**row(first, SECOND), "loss_mask": (row(FIRST, SECOND)["segment_ids"] == 2).astype(int)}
    assert float(loss_of(of_second(FIRST)).total) == float(loss_of(of_second([7, 7, 7, 7, 7])).total)


def test_what_is_masked_has_neither_loss_nor_gradient():
    graphdef, params = nnx.split(MODELS["llama, scanned"]())
    batch = row(FIRST)
    batch["loss_mask"] = jnp.asarray([[0, 0, 0, 1, 1, *[0] * 8]])
    other = {**batch, "tokens": batch["tokens"].at[0, 5:].set(9)}  # padding may hold anything

    def total(params, batch):
        loss = next_token_loss(nnx.merge(graphdef, params), batch)
        return loss.total, loss.weight

    value = jax.jit(jax.value_and_grad(total, has_aux=True))
    one, two = value(params, batch), value(params, other)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    assert float(one[0][1]) == 2


def test_all_that_count_are_as_many_as_without_a_mask():
    model, tokens = MODELS["gpt"](), jnp.arange(26).reshape(2, 13)
    loss_of = jax.jit(lambda batch: next_token_loss(model, batch))
    loss = loss_of({"tokens": tokens, "loss_mask": jnp.ones_like(tokens)})
    np.testing.assert_allclose(loss.total / loss.weight, loss_of({"tokens": tokens}), rtol=1e-6)
    uniform = lambda tokens, **_: jnp.zeros((*tokens.shape, 64))
    np.testing.assert_allclose(next_token_loss(uniform, row(FIRST)).total, 4 * np.log(64), rtol=1e-6)


def test_a_model_that_knows_no_documents_is_a_sentence():
    lstm = LSTM(LSTMConfig(vocab_size=64, d_model=8, n_layer=1), rngs=nnx.Rngs(0))
    for model, name in ((lstm, "LSTM"), (lambda tokens: tokens, "function")):
        with pytest.raises(ModelError, match=f"segment_ids and positions, for rows of several documents, which {name}"):
            next_token_loss(model, row(FIRST))
