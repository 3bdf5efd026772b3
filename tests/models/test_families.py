"""What holds for every family: its count of parameters, its dtypes, and that ZeRO-3 trains it as stage 0 does."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jzero.models import LlamaConfig, LSTMConfig, ResNetConfig, build, next_token_loss
from tests import helpers
from tests.models.common import cast, product_dtypes, with_params
from tests.models.linen_models import LinenLlama, LinenLSTM, LinenResNet, linen_image_loss

LLAMA = {"vocab_size": 61, "seq_len": 12, "d_model": 32, "n_layer": 1, "n_head": 4, "n_kv_head": 2, "d_ff": 48}
VIT = {"image_size": 16, "patch_size": 4, "n_classes": 10, "d_model": 32, "n_layer": 1, "n_head": 2}
RESNET = {"depth": 6, "n_classes": 10, "width": 8}
LSTM = {"vocab_size": 61, "d_model": 32, "n_layer": 1}
SCANNED = {"n_layer": 2, "scan_layers": True, "remat": "dots_saveable"}
MODELS = {
    "llama": {"family": "llama", **LLAMA},
    "llama scanned": {"family": "llama", **LLAMA, **SCANNED, "tie_head": True},
    "vit": {"family": "vit", **VIT, "remat": True},
    "vit scanned": {"family": "vit", **VIT, **SCANNED},
    "resnet": {"family": "resnet", **RESNET},
    "resnext": {"family": "resnet", **RESNET, "depth": 8, "groups": 4, "width_per_group": 4},
    "lstm": {"family": "lstm", **LSTM, "n_layer": 2},
    "gru": {"family": "lstm", **LSTM, "cell": "gru"},
}
LINEN = {
    "llama": (LinenLlama(LlamaConfig(**LLAMA)), next_token_loss),
    "resnet": (LinenResNet(ResNetConfig(**RESNET)), linen_image_loss),
    "lstm": (LinenLSTM(LSTMConfig(**LSTM)), next_token_loss),
}
families = pytest.mark.parametrize("name", MODELS)


def batches(name: str, n: int = 3, rows: int = 16) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    if any(word in name for word in ("vit", "res")):
        image = lambda: random.standard_normal((rows, 16, 16, 3), np.float32)
        return [{"image": image(), "label": random.integers(0, 10, rows, dtype=np.int32)} for _ in range(n)]
    return [{"tokens": random.integers(0, 61, (rows, 13), dtype=np.int32)} for _ in range(n)]


@families
def test_the_parameter_count_is_the_formula(name):
    model = nnx.eval_shape(lambda: build(MODELS[name]).factory(nnx.Rngs(0)))
    assert sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))) == model.config.n_params


@families
def test_the_compute_dtype_is_that_of_the_parameters(name):
    built, (batch,) = build(MODELS[name]), batches(name, 1)
    model = built.factory(nnx.Rngs(0))
    params = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    loss = jax.jit(lambda p: built.loss_fn(with_params(model, p), batch))
    for dtype in (jnp.float32, jnp.bfloat16, jnp.float16):
        value, grads = jax.eval_shape(jax.value_and_grad(loss), cast(params, dtype))
        assert value.dtype == jnp.float32
        assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype(dtype)}
        assert product_dtypes(loss, cast(params, dtype)) == {jnp.dtype(dtype)}
    assert float(loss(cast(params, jnp.float16))) == pytest.approx(float(loss(params)), rel=1e-2)


@functools.cache
def run(name: str, api: str, stage: int, precision: str = "fp32") -> tuple[helpers.Run, Any]:
    """Three steps on eight devices, and the model state after them."""
    steps = batches(name)
    model, loss_fn = LINEN[name] if api == "linen" else build(MODELS[name])[:2]
    sections = {} if precision == "fp32" else {precision: {"enabled": True}}
    engine = helpers.build(stage, steps[0], model=model, loss_fn=loss_fn, optimizer=optax.sgd(0.05), sections=sections)
    assert any(p.dim is not None for p in jax.tree.leaves(engine.placements)) == (stage > 0)
    return helpers.train(engine, steps), helpers.host(engine.state.model_state)


# The plain ResNet is slow to compile; its Linen form and ResNeXt have all that it has.
FORMS = [*((name, "nnx") for name in MODELS if name != "resnet"), *((name, "linen") for name in LINEN)]


@pytest.mark.parametrize(("name", "api"), [pytest.param(*form, id=" ".join(form)) for form in FORMS])
def test_stage_3_trains_as_stage_0(name, api):
    (actual, actual_state), (expected, expected_state) = run(name, api, 3), run(name, api, 0)
    assert expected.losses[0] != expected.losses[1]
    helpers.assert_equal_runs(actual, expected)
    helpers.assert_close(actual_state, expected_state)


@pytest.mark.parametrize("name", ["llama", "resnext", "gru"])
def test_stage_3_trains_in_16_bits(name):
    actual, expected = run(name, "nnx", 3, "bf16")[0], run(name, "nnx", 0)[0]
    np.testing.assert_allclose(actual.losses, expected.losses, rtol=2e-2)
    assert {leaf.dtype for leaf in jax.tree.leaves(actual.params)} == {np.dtype("float32")}
