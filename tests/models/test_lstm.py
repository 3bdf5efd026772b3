"""The recurrent language model against loops in numpy, Flax's own cells and the formulas of its sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jzero.errors import ConfigError
from jzero.models import LSTM, LSTMConfig, next_token_loss
from tests.models.common import to_numpy, uneven, value_and_grad, with_params
from tests.models.linen_models import LinenLSTM, lstm_weights

BATCH = {"tokens": np.random.default_rng(0).integers(0, 61, (4, 11), dtype=np.int32)}
cells = pytest.mark.parametrize("cell", ["lstm", "gru"])


def config(cell: str) -> LSTMConfig:
    return LSTMConfig(vocab_size=61, d_model=16, n_layer=2, cell=cell)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_steps(x, p):
    h = c = np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ p["kernel"] + h @ p["recurrent"] + p["bias"], 4, axis=-1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        yield h


def gru_steps(x, p):
    h = np.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        of_x = np.split(x[:, t] @ p["kernel"] + p["bias"], 3, axis=-1)
        of_h = np.split(h @ p["recurrent"], 3, axis=-1)
        r, z = sigmoid(of_x[0] + of_h[0]), sigmoid(of_x[1] + of_h[1])
        h = z * h + (1 - z) * np.tanh(of_x[2] + r * (of_h[2] + p["recurrent_bias"]))
        yield h


@cells
def test_the_logits_are_those_of_a_loop_in_numpy(cell):
    model = LSTM(config(cell), rngs=nnx.Rngs(0))
    params = uneven(model)
    w = to_numpy(params)
    x = w["wte"][BATCH["tokens"]]
    for i in range(2):
        x = np.stack(list((lstm_steps if cell == "lstm" else gru_steps)(x, w["layers"][i])), axis=1)
    logits = with_params(model, params)(BATCH["tokens"])
    assert logits.shape == (4, 11, 61)
    np.testing.assert_allclose(logits, x @ w["head"]["kernel"], rtol=1e-4, atol=1e-5)


@cells
def test_loss_and_gradients_are_those_of_linens_cells(cell):
    model = LSTM(config(cell), rngs=nnx.Rngs(0))
    params = uneven(model)
    run = lambda p, tokens: LinenLSTM(config(cell)).apply({"params": lstm_weights(p, cell)}, tokens)
    linen = lambda p: next_token_loss(lambda tokens: run(p, tokens), BATCH)
    expected, expected_grads = jax.jit(jax.value_and_grad(linen))(params)
    value, grads = value_and_grad(model, next_token_loss, params, BATCH)
    assert float(value) == pytest.approx(float(expected), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), grads, expected_grads)


@cells
def test_the_state_is_float32_in_16_bits_too(cell):
    model = LSTM(config(cell), rngs=nnx.Rngs(0))
    low = with_params(model, jax.tree.map(lambda x: x.astype(jnp.bfloat16), uneven(model)))
    jaxpr = jax.make_jaxpr(lambda tokens: low(tokens))(jnp.asarray(BATCH["tokens"]))
    loops = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive.name == "scan"]
    assert len(loops) == 2
    for loop in loops:
        *state, outputs = [v.aval.dtype for v in loop.outvars]
        assert (set(state), outputs) == ({np.dtype("float32")}, jnp.bfloat16)


@pytest.mark.parametrize(
    ("sizes", "n_params"),
    [
        # With one bias for each gate, where cuDNN has two.
        (LSTMConfig(10000, 650, 2), 2 * 10000 * 650 + 2 * (8 * 650**2 + 4 * 650)),
        (LSTMConfig(256, 512, 3, cell="gru"), 2 * 256 * 512 + 3 * (6 * 512**2 + 4 * 512)),
    ],
)
def test_sizes(sizes, n_params):
    assert sizes.n_params == n_params


def test_dropout_rests_in_evaluation():
    model = LSTM(LSTMConfig(61, 16, 1, dropout=0.5), rngs=nnx.Rngs(0))
    assert not np.array_equal(model(BATCH["tokens"]), model(BATCH["tokens"]))
    model.eval()
    np.testing.assert_array_equal(model(BATCH["tokens"]), model(BATCH["tokens"]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"cell": "rnn"}, "model.cell must be one of lstm, gru, not 'rnn'."),
        ({"d_model": -1}, "model.d_model must be a positive whole number, not -1."),
        ({"dropout": 1}, "model.dropout must be a rate from 0 up to, not including, 1, not 1."),
    ],
)
def test_sizes_that_do_not_fit_are_a_sentence(change, says):
    with pytest.raises(ConfigError) as error:
        LSTMConfig(**{"vocab_size": 61, "d_model": 16, "n_layer": 2, **change})
    assert str(error.value) == says
