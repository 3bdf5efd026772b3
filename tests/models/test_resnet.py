"""The ResNet against Flax Linen's own layers, its statistics, its shapes and its published sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jzero.errors import ConfigError
from jzero.models import ResNet, ResNetConfig, classification_loss
from jzero.models.layers import BatchNorm
from tests.models.common import uneven, with_params
from tests.models.linen_models import LinenResNet, linen_image_loss, resnet_variables

RANDOM = np.random.default_rng(0)
BATCH = {
    "image": RANDOM.standard_normal((8, 32, 32, 3), np.float32),
    "label": RANDOM.integers(0, 7, 8, dtype=np.int32),
}
CONFIGS = {
    "basic": ResNetConfig(depth=6, n_classes=7, width=8),
    "grouped": ResNetConfig(depth=8, n_classes=7, width=8, groups=4, width_per_group=2),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_what_linen_computes(name):
    model = ResNet(CONFIGS[name], rngs=nnx.Rngs(0))
    params, statistics = uneven(model), nnx.to_pure_dict(nnx.state(model, nnx.BatchStat))
    linen = LinenResNet(CONFIGS[name])

    def linen_loss(params):
        variables = {"params": resnet_variables(params), "batch_stats": resnet_variables(statistics)}
        run = lambda *args: linen.apply(variables, *args, mutable="batch_stats")
        changed = {}
        loss = linen_image_loss(lambda *args: (out := run(*args), changed.update(out[1]))[0][0], BATCH, True)
        return loss, changed["batch_stats"]

    def own_loss(params):
        own = with_params(model, params)
        loss = classification_loss(own, BATCH)
        return loss, resnet_variables(nnx.to_pure_dict(nnx.state(own, nnx.BatchStat)))

    (expected, moved), expected_grads = jax.jit(jax.value_and_grad(linen_loss, has_aux=True))(params)
    (value, own_moved), grads = jax.jit(jax.value_and_grad(own_loss, has_aux=True))(params)
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    scale = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(expected_grads))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5 * scale), grads, expected_grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), own_moved, moved)

    variables = {"params": resnet_variables(params), "batch_stats": resnet_variables(statistics)}
    expected = jax.jit(lambda images: linen.apply(variables, images, False))(BATCH["image"])
    evaluated = jax.jit(lambda images: nnx.view(with_params(model, params), use_running_average=True)(images))
    np.testing.assert_allclose(evaluated(BATCH["image"]), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "n_params"),
    [
        ({"depth": 18}, 11_689_512),
        ({"depth": 34}, 21_797_672),
        ({"depth": 50}, 25_557_032),
        ({"depth": 101}, 44_549_160),
        ({"depth": 152}, 60_192_808),
        ({"depth": 50, "groups": 32, "width_per_group": 4}, 25_028_904),  # ResNeXt-50 32x4d
        ({"depth": 101, "groups": 32, "width_per_group": 8}, 88_791_336),  # ResNeXt-101 32x8d
        ({"depth": 50, "width_per_group": 128}, 68_883_240),  # Wide ResNet-50-2
    ],
)
def test_published_sizes(sizes, n_params):
    assert ResNetConfig(n_classes=1000, **sizes).n_params == n_params


def test_shapes_of_a_resnet_50():
    model = nnx.eval_shape(lambda: ResNet(ResNetConfig(depth=50, n_classes=1000), rngs=nnx.Rngs(0)))
    assert sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))) == 25_557_032
    x = jax.eval_shape(lambda m, x: m.stem(x), model, jax.ShapeDtypeStruct((2, 224, 224, 3), jnp.float32))
    assert x.shape == (2, 112, 112, 64)
    assert model.blocks[3].convs[0].conv.strides == 1  # v1.5: the stride is at the 3x3 convolution
    assert model.blocks[3].convs[1].conv.strides == 2
    assert jax.eval_shape(lambda m, x: m(x), model, jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)).shape == (
        2,
        1000,
    )


def test_statistics_are_float32_and_their_use_follows_the_mode():
    norm = BatchNorm(4, rngs=nnx.Rngs(0))
    x = jnp.asarray(100 + RANDOM.standard_normal((64, 4)), jnp.bfloat16)
    y = norm(x)
    exact = np.asarray(x, np.float64)
    assert y.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(y, np.float32).mean(0), 0, atol=1e-2)
    assert norm.mean[...].dtype == norm.var[...].dtype == jnp.float32
    np.testing.assert_allclose(norm.mean[...], 0.1 * exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(norm.var[...], 0.9 + 0.1 * exact.var(0), rtol=1e-3)
    norm.eval()
    expected = (exact - norm.mean[...]) / np.sqrt(norm.var[...] + 1e-5)
    np.testing.assert_allclose(np.asarray(norm(x), np.float32), expected, rtol=1e-2)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"depth": 51}, "model.depth must be one of 6, 8, 18, 34, 50, 101, 152, not 51."),
        ({"depth": 50, "width": 0}, "model.width must be a positive whole number, not 0."),
        (
            {"depth": 18, "groups": 2},
            "model.groups and model.width_per_group divide bottlenecks; a ResNet-18 has none, ",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_a_sentence(sizes, says):
    with pytest.raises(ConfigError) as error:
        ResNetConfig(n_classes=10, **sizes)
    assert str(error.value).startswith(says)
