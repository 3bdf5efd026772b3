"""The GPT's forms agree with each other and with a plain numpy forward pass."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jzero.errors import ConfigError
from jzero.models import GPT, GPTConfig, GPTLinen, next_token_loss
from tests.models.gpt_weights import as_linen, split_nnx, stacked

CONFIG = GPTConfig(vocab_size=61, seq_len=12, d_model=16, n_layer=3, n_head=2)
BATCH = {"tokens": np.random.default_rng(0).integers(0, 61, (4, 11), dtype=np.int32)}  # shorter than seq_len


def weights():
    """Weights of the unrolled form, made uneven so that no mistake hides behind zeros and ones."""
    params = nnx.to_pure_dict(split_nnx(CONFIG)[1])
    keys = iter(jax.random.split(jax.random.key(7), len(jax.tree.leaves(params))))
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape, x.dtype), params)


def value_and_grad(config, params, api, dtype=jnp.float32):
    """Loss and gradients of one form, gradients as a dict of stacked leaves in NNX names."""
    given = stacked(params, config.n_layer) if config.scan_layers else params
    given = jax.tree.map(lambda x: x.astype(dtype), given)
    if api == "nnx":
        graphdef, abstract, rest = split_nnx(config)
        treedef = jax.tree.structure(abstract)

        def loss(p):
            return next_token_loss(nnx.merge(graphdef, treedef.unflatten(jax.tree.leaves(p)), rest), BATCH)
    else:
        given = as_linen(given, config)

        def loss(p):
            return next_token_loss(lambda tokens: GPTLinen(config).apply({"params": p}, tokens), BATCH)

    value, grads = jax.jit(jax.value_and_grad(loss))(given)
    if api == "linen" and not config.scan_layers:
        grads["h"] = {i: grads.pop(f"h_{i}") for i in range(config.n_layer)}
    return value, grads if config.scan_layers else stacked(grads, config.n_layer)


def numpy_loss(w):
    """GPT-2's forward pass, written down in float64 numpy."""

    def norm(x, p):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]

    def linear(x, p):
        return x @ p["kernel"] + p["bias"]

    w = jax.tree.map(lambda x: np.asarray(x, np.float64), w)
    tokens, labels = BATCH["tokens"][:, :-1], BATCH["tokens"][:, 1:]
    n_batch, n_tokens = tokens.shape
    x = w["wte"][tokens] + w["wpe"][:n_tokens]
    for i in range(CONFIG.n_layer):
        p = w["h"][i]
        q, k, v = np.split(linear(norm(x, p["ln_1"]), p["attn"]["qkv"]), 3, axis=-1)
        q, k, v = (t.reshape(n_batch, n_tokens, CONFIG.n_head, -1).transpose(0, 2, 1, 3) for t in (q, k, v))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(n_tokens, dtype=bool), scores, -np.inf)
        attention = np.exp(scores - scores.max(-1, keepdims=True))
        attention = attention / attention.sum(-1, keepdims=True) @ v
        x = x + linear(attention.transpose(0, 2, 1, 3).reshape(n_batch, n_tokens, -1), p["attn"]["proj"])
        y = linear(norm(x, p["ln_2"]), p["mlp"]["fc"])
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + linear(y, p["mlp"]["proj"])
    logits = norm(x, w["ln_f"]) @ w["wte"].T
    log_sum = np.log(np.exp(logits).sum(-1))
    return (log_sum - np.take_along_axis(logits, labels[..., None], -1)[..., 0]).mean()


def test_the_loss_is_that_of_a_numpy_forward_pass():
    params = weights()
    value, _ = value_and_grad(CONFIG, params, "nnx")
    assert float(value) == pytest.approx(numpy_loss(params), rel=1e-6)


@pytest.mark.parametrize(
    ("api", "scan", "remat"), list(itertools.product(["nnx", "linen"], [False, True], [False, True]))
)
def test_every_form_has_the_same_loss_and_gradients(api, scan, remat):
    params = weights()
    value, grads = value_and_grad(CONFIG, params, "nnx")
    config = dataclasses.replace(CONFIG, scan_layers=scan, remat=remat)
    other_value, other_grads = value_and_grad(config, params, api)
    assert float(other_value) == pytest.approx(float(value), rel=1e-6)
    expected = jax.tree_util.tree_leaves_with_path(grads)
    found = dict(jax.tree_util.tree_leaves_with_path(other_grads))
    assert len(found) == len(expected)
    for path, leaf in expected:
        np.testing.assert_allclose(found[path], leaf, rtol=1e-4, atol=1e-6, err_msg=str(path))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_compute_dtype_is_that_of_the_parameters(dtype):
    params = weights()
    value, grads = value_and_grad(CONFIG, params, "nnx", dtype)
    assert value.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype(dtype)}
    assert float(value) == pytest.approx(numpy_loss(params), rel=2e-2)
    graphdef, abstract, rest = split_nnx(CONFIG)
    low = jax.tree.map(lambda x: x.astype(dtype), abstract)
    blocks = jax.make_jaxpr(lambda p: nnx.merge(graphdef, p, rest).h[0](jnp.ones((1, 4, 16), dtype)))(low)
    products = [e for e in blocks.jaxpr.eqns if e.primitive.name == "dot_general"]
    assert len(products) >= 4
    assert {v.aval.dtype for e in products for v in (*e.invars, *e.outvars)} == {jnp.dtype(dtype)}


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("api", ["nnx", "linen"])
def test_the_parameter_count_is_the_formula(api, scan):
    config = dataclasses.replace(CONFIG, scan_layers=scan)
    if api == "nnx":
        params = split_nnx(config)[1]
    else:
        params = GPTLinen(config).init(jax.random.key(0), BATCH["tokens"])["params"]
    assert sum(x.size for x in jax.tree.leaves(params)) == config.n_params


def test_shapes_of_a_large_model_cost_nothing():
    config = GPTConfig(
        vocab_size=50304, seq_len=1024, d_model=4096, n_layer=36, n_head=32, scan_layers=True, remat=True
    )
    params = nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: GPT(config, rngs=nnx.Rngs(0))), nnx.Param))
    assert params["h"]["mlp"]["fc"]["kernel"].shape == (36, 4096, 16384)
    assert params["h"]["attn"]["qkv"]["bias"].shape == (36, 3 * 4096)
    assert params["wte"].shape == (50304, 4096)
    linen = jax.eval_shape(GPTLinen(config).init, jax.random.key(0), jnp.zeros((1, 8), jnp.int32))["params"]
    assert jax.tree.map(lambda x: x.shape, linen) == jax.tree.map(lambda x: x.shape, params)
    assert sum(x.size for x in jax.tree.leaves(params)) == config.n_params == 7_459_921_920


def test_initialisation_is_that_of_gpt2():
    config = GPTConfig(vocab_size=256, seq_len=64, d_model=128, n_layer=2, n_head=4, scan_layers=True)
    p = nnx.to_pure_dict(split_nnx(config)[1])
    assert np.std(p["wte"]) == pytest.approx(0.02, rel=0.05)
    assert np.std(p["wpe"]) == pytest.approx(0.01, rel=0.05)
    assert np.std(p["h"]["attn"]["qkv"]["kernel"]) == pytest.approx(0.02, rel=0.05)
    assert np.std(p["h"]["mlp"]["proj"]["kernel"]) == pytest.approx(0.02 / np.sqrt(2 * 2), rel=0.05)
    assert not np.array_equal(p["h"]["attn"]["qkv"]["kernel"][0], p["h"]["attn"]["qkv"]["kernel"][1])
    assert {x.dtype for x in jax.tree.leaves(p)} == {np.dtype("float32")}


@pytest.mark.parametrize(("scan", "remat"), [(False, False), (False, True), (True, True)])
def test_dropout_differs_between_layers_and_calls_and_rests_in_evaluation(scan, remat):
    config = dataclasses.replace(CONFIG, dropout=0.5, scan_layers=scan, remat=remat)
    model = GPT(config, rngs=nnx.Rngs(0))
    tokens = jnp.asarray(BATCH["tokens"])
    assert not np.array_equal(model(tokens), model(tokens))
    model.eval()
    np.testing.assert_array_equal(model(tokens), model(tokens))


def test_linen_dropout_follows_the_random_stream_unless_told():
    model = GPTLinen(dataclasses.replace(CONFIG, dropout=0.5, scan_layers=True))
    variables = model.init(jax.random.key(0), BATCH["tokens"])
    run = lambda seed, **kwargs: model.apply(
        variables, BATCH["tokens"], rngs={"dropout": jax.random.key(seed)}, **kwargs
    )
    assert not np.array_equal(run(0), run(1))
    np.testing.assert_array_equal(run(0, deterministic=True), model.apply(variables, BATCH["tokens"]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_head": 3}, "model.d_model 16 must be a multiple of model.n_head 3."),
        ({"n_layer": 0}, "model.n_layer must be a positive whole number, not 0."),
        ({"d_model": 16.5}, "model.d_model must be a positive whole number, not 16.5."),
        (
            {"remat": "everything"},
            "model.remat must be true, false or the name of one of jax.checkpoint_policies, not 'everything'.",
        ),
        (
            {"remat": "save_only_these_names"},
            "model.remat 'save_only_these_names' takes arguments, which a name cannot give; the policies that take "
            "none are nothing_saveable, everything_saveable, dots_saveable, checkpoint_dots, "
            "dots_with_no_batch_dims_saveable, checkpoint_dots_with_no_batch_dims.",
        ),
        ({"dropout": 1.5}, "model.dropout must be a rate from 0 up to, not including, 1, not 1.5."),
        ({"scan_layers": "yes"}, "model.scan_layers must be true or false, not 'yes'."),
    ],
)
def test_sizes_that_do_not_fit_are_a_sentence(change, says):
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(CONFIG, **change)
    assert str(error.value) == says
