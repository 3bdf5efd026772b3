"""The Llama's parts, its forms and its sizes against formulas, numpy, Flax's own layers and published counts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jzero.errors import ConfigError, ModelError
from jzero.models import Llama, LlamaConfig, next_token_loss, ops
from jzero.ops import attention
from tests.models.common import to_numpy, uneven, value_and_grad
from tests.models.gpt_weights import stacked
from tests.models.linen_models import LinenLlama, llama_weights

CONFIG = LlamaConfig(vocab_size=61, seq_len=12, d_model=16, n_layer=2, n_head=4, n_kv_head=2, d_ff=24)
BATCH = {"tokens": np.random.default_rng(0).integers(0, 61, (4, 11), dtype=np.int32)}


def weights(config=CONFIG):
    return uneven(Llama(config, rngs=nnx.Rngs(0)))


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def numpy_loss(w):
    """Llama's forward pass in float64 numpy: rotations as complex numbers, one head at a time."""

    def norm(x, p):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG.norm_epsilon) * p["scale"]

    def rotated(x):  # [B, T, d_head]
        half = x.shape[-1] // 2
        turns = np.exp(1j * np.outer(np.arange(x.shape[1]), 1e4 ** (-2 * np.arange(half) / x.shape[-1])))
        z = (x[..., :half] + 1j * x[..., half:]) * turns
        return np.concatenate([z.real, z.imag], axis=-1)

    w = to_numpy(w)
    tokens, labels = BATCH["tokens"][:, :-1], BATCH["tokens"][:, 1:]
    unseen = np.where(np.tri(tokens.shape[1], dtype=bool), 0, -np.inf)
    x = w["wte"][tokens]
    for i in range(CONFIG.n_layer):
        p, outputs = w["h"][i], []
        y = norm(x, p["norm_1"])
        q, k, v = (y @ p["attn"][name]["kernel"] for name in "qkv")
        for head in range(CONFIG.n_head):
            own, shared = (slice(4 * n, 4 * n + 4) for n in (head, head // 2))
            scores = rotated(q[..., own]) @ rotated(k[..., shared]).transpose(0, 2, 1) / 2 + unseen
            attention = np.exp(scores)
            outputs.append(attention / attention.sum(-1, keepdims=True) @ v[..., shared])
        x = x + np.concatenate(outputs, axis=-1) @ p["attn"]["proj"]["kernel"]
        y = norm(x, p["norm_2"])
        gate, up = (y @ p["mlp"][name]["kernel"] for name in ("gate", "up"))
        x = x + gate / (1 + np.exp(-gate)) * up @ p["mlp"]["down"]["kernel"]
    logits = norm(x, w["norm_f"]) @ w["head"]["kernel"]
    log_sum = np.log(np.exp(logits).sum(-1))
    return (log_sum - np.take_along_axis(logits, labels[..., None], -1)[..., 0]).mean()


def test_the_loss_is_that_of_a_numpy_forward_pass():
    params = weights()
    value, _ = value_and_grad(Llama(CONFIG, rngs=nnx.Rngs(0)), next_token_loss, params, BATCH)
    assert float(value) == pytest.approx(numpy_loss(params), rel=1e-6)


@pytest.fixture(scope="module")
def linens():
    """Loss and gradients of the Linen form."""
    run = lambda p, tokens: LinenLlama(CONFIG).apply({"params": llama_weights(p)}, tokens)
    return jax.jit(jax.value_and_grad(lambda p: next_token_loss(lambda tokens: run(p, tokens), BATCH)))(weights())


@pytest.mark.parametrize(
    ("scan", "remat"), [(False, False), (False, True), (True, False), (True, True), (True, "dots_saveable")]
)
def test_every_form_has_the_same_loss_and_gradients(linens, scan, remat):
    params, (value, grads) = weights(), linens
    model = Llama(dataclasses.replace(CONFIG, scan_layers=scan, remat=remat), rngs=nnx.Rngs(0))
    in_form = lambda tree: stacked(tree, CONFIG.n_layer) if scan else tree
    other_value, other_grads = value_and_grad(model, next_token_loss, in_form(params), BATCH)
    assert float(other_value) == pytest.approx(float(value), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), other_grads, in_form(grads))


def test_rotary_positions_turn_and_see_distances_only():
    q, k = normal(8), normal(8, seed=1)
    along = lambda x: ops.rotate(jnp.broadcast_to(x, (1, 9, 1, 8)), 100.0)[0, :, 0]
    np.testing.assert_array_equal(along(q)[0], q)
    np.testing.assert_allclose(jnp.linalg.norm(along(q), axis=-1), jnp.linalg.norm(q), rtol=1e-6)
    products = along(q) @ along(k).T  # [9, 9]
    for distance in range(-8, 9):
        diagonal = np.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    assert len(set(np.round(np.asarray(products[0]), 4))) == 9


def test_grouped_queries_are_repeated_heads():
    q, k, v = normal(2, 5, 6, 4), normal(2, 5, 2, 4, seed=1), normal(2, 5, 2, 4, seed=2)
    for causal in (False, True):
        repeated = attention(q, jnp.repeat(k, 3, axis=2), jnp.repeat(v, 3, axis=2), causal=causal)
        np.testing.assert_allclose(attention(q, k, v, causal=causal), repeated, rtol=1e-5, atol=1e-6)
        expected = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
        np.testing.assert_allclose(repeated, expected, rtol=1e-5, atol=1e-6)


def test_the_mean_square_is_taken_in_float32():
    x = jnp.full((1, 4096), 300.0, jnp.float16)  # whose square is beyond fp16
    y = ops.rms_norm(x, jnp.full(4096, 2.0, jnp.float16), 1e-5)
    assert y.dtype == jnp.float16
    np.testing.assert_array_equal(np.asarray(y), np.float16(2))


@pytest.mark.parametrize(
    ("vocab_size", "d_model", "n_layer", "n_head", "n_kv_head", "d_ff", "n_params"),
    [
        (32000, 4096, 32, 32, None, None, 6_738_415_616),  # Llama 2 7B
        (32000, 5120, 40, 40, None, None, 13_015_864_320),  # Llama 2 13B
        (32000, 8192, 80, 64, 8, 28672, 68_976_648_192),  # Llama 2 70B
        (128256, 4096, 32, 32, 8, 14336, 8_030_261_248),  # Llama 3 8B
    ],
)
def test_published_sizes(vocab_size, d_model, n_layer, n_head, n_kv_head, d_ff, n_params):
    config = LlamaConfig(vocab_size, 4096, d_model, n_layer, n_head, n_kv_head, d_ff, scan_layers=True, remat=True)
    params = nnx.state(nnx.eval_shape(lambda: Llama(config, rngs=nnx.Rngs(0))), nnx.Param)
    assert sum(x.size for x in jax.tree.leaves(params)) == config.n_params == n_params


def test_a_tied_head_is_the_embedding():
    config = dataclasses.replace(CONFIG, tie_head=True)
    assert config.n_params == CONFIG.n_params - 61 * 16
    params = weights(config)
    untied = {**params, "head": {"kernel": params["wte"].T}}
    values = [
        value_and_grad(Llama(c, rngs=nnx.Rngs(0)), next_token_loss, p, BATCH)[0]
        for c, p in ((config, params), (CONFIG, {name: untied[name] for name in weights()}))
    ]
    assert float(values[0]) == pytest.approx(float(values[1]), rel=1e-6)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_kv_head": 3}, "model.n_head 4 must be a multiple of model.n_kv_head 3."),
        ({"n_head": 16}, "model.d_model 16 over model.n_head 16 makes heads of width 1; rotary positions need an even"),
        ({"n_kv_head": 0}, "model.n_kv_head must be a positive whole number, not 0."),
        ({"d_ff": 2.5}, "model.d_ff must be a positive whole number, not 2.5."),
        ({"rope_theta": 0}, "model.rope_theta must be a positive number, not 0."),
        ({"tie_head": "no"}, "model.tie_head must be true or false, not 'no'."),
        ({"remat": "all"}, "model.remat must be true, false or the name of one of jax.checkpoint_policies, not 'all'."),
    ],
)
def test_sizes_that_do_not_fit_are_a_sentence(change, says):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(CONFIG, **change)
    assert str(error.value).startswith(says)


def test_a_longer_sequence_is_a_sentence():
    with pytest.raises(ModelError) as error:
        Llama(CONFIG, rngs=nnx.Rngs(0))(jnp.zeros((1, 13), jnp.int32))
    assert str(error.value) == "the batch has 13 tokens a row; model.seq_len is 12."
