"""The vision transformer against a numpy forward pass, in all its forms, and its published sizes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jzero.errors import ConfigError, ModelError
from jzero.models import ViT, ViTConfig, classification_loss
from tests.models.common import to_numpy, uneven, value_and_grad
from tests.models.gpt_weights import stacked

CONFIG = ViTConfig(image_size=12, patch_size=4, n_classes=7, d_model=16, n_layer=2, n_head=2)
RANDOM = np.random.default_rng(0)
BATCH = {
    "image": RANDOM.standard_normal((4, 12, 12, 3), np.float32),
    "label": RANDOM.integers(0, 7, 4, dtype=np.int32),
}


def weights():
    return uneven(ViT(CONFIG, rngs=nnx.Rngs(0)))


def numpy_loss(w):
    """The forward pass in float64 numpy: a patch is a row of pixels, and its embedding a matrix product."""

    def norm(x, p):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]

    def linear(x, p):
        return x @ p["kernel"] + p["bias"]

    w = to_numpy(w)
    patches = BATCH["image"].reshape(4, 3, 4, 3, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(4, 9, 48)
    x = patches @ w["patches"]["kernel"].reshape(48, 16) + w["patches"]["bias"]
    x = np.concatenate([np.broadcast_to(w["class_token"], (4, 1, 16)), x], axis=1) + w["positions"]
    for i in range(CONFIG.n_layer):
        p = w["h"][i]
        qkv = linear(norm(x, p["ln_1"]), p["attn"]["qkv"]).reshape(4, 10, 3, 2, 8)
        scores = np.einsum("bqhd,bkhd->bhqk", qkv[:, :, 0], qkv[:, :, 1]) / np.sqrt(8)
        attention = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        y = np.einsum("bhqk,bkhd->bqhd", attention, qkv[:, :, 2]).reshape(4, 10, 16)
        x = x + linear(y, p["attn"]["proj"])
        y = linear(norm(x, p["ln_2"]), p["mlp"]["fc"])
        x = x + linear(0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3))), p["mlp"]["proj"])
    logits = linear(norm(x[:, 0], w["ln_f"]), w["head"])
    return (np.log(np.exp(logits).sum(-1)) - logits[np.arange(4), BATCH["label"]]).mean()


@pytest.fixture(scope="module")
def unrolled():
    """Loss and gradients of the plainest form."""
    return value_and_grad(ViT(CONFIG, rngs=nnx.Rngs(0)), classification_loss, weights(), BATCH)


def test_the_loss_is_that_of_a_numpy_forward_pass(unrolled):
    assert float(unrolled[0]) == pytest.approx(numpy_loss(weights()), rel=1e-6)


@pytest.mark.parametrize(("scan", "remat"), [(False, True), (True, False), (True, True)])
def test_every_form_has_the_same_loss_and_gradients(unrolled, scan, remat):
    params, (value, grads) = weights(), unrolled
    model = ViT(dataclasses.replace(CONFIG, scan_layers=scan, remat=remat), rngs=nnx.Rngs(0))
    in_form = lambda tree: stacked(tree, CONFIG.n_layer) if scan else tree
    other_value, other_grads = value_and_grad(model, classification_loss, in_form(params), BATCH)
    assert float(other_value) == pytest.approx(float(value), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), other_grads, in_form(grads))


@pytest.mark.parametrize(
    ("patch_size", "d_model", "n_layer", "n_head", "n_params"),
    [
        (16, 768, 12, 12, 86_567_656),  # ViT-B/16
        (32, 768, 12, 12, 88_224_232),  # ViT-B/32
        (16, 1024, 24, 16, 304_326_632),  # ViT-L/16
    ],
)
def test_published_sizes(patch_size, d_model, n_layer, n_head, n_params):
    config = ViTConfig(224, patch_size, 1000, d_model, n_layer, n_head, scan_layers=True)
    params = nnx.state(nnx.eval_shape(lambda: ViT(config, rngs=nnx.Rngs(0))), nnx.Param)
    assert sum(x.size for x in jax.tree.leaves(params)) == config.n_params == n_params


@pytest.mark.parametrize("scan", [False, True])
def test_dropout_differs_between_calls_and_rests_in_evaluation(scan):
    model = ViT(dataclasses.replace(CONFIG, n_layer=1, dropout=0.5, scan_layers=scan), rngs=nnx.Rngs(0))
    images = jnp.asarray(BATCH["image"])
    assert not np.array_equal(model(images), model(images))
    model.eval()
    np.testing.assert_array_equal(model(images), model(images))


def test_what_does_not_fit_is_a_sentence():
    with pytest.raises(ConfigError) as error:
        dataclasses.replace(CONFIG, patch_size=5)
    assert str(error.value) == "model.image_size 12 must be a multiple of model.patch_size 5."
    with pytest.raises(ModelError) as error:
        ViT(CONFIG, rngs=nnx.Rngs(0))(jnp.zeros((1, 16, 16, 3)))
    assert str(error.value) == "the images have shape (16, 16, 3); the model is made for (12, 12, 3)."
