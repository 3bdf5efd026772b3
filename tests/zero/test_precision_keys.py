"""The keys about number formats, by their effects: on what lasts, on what travels, and on what comes out."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from jzero.config import Config
from jzero.errors import ConfigError
from jzero.explain.parameters import explain
from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.llama import Llama
from jzero.models.llama_config import LlamaConfig
from jzero.models.losses import classification_loss, next_token_loss
from jzero.models.resnet import ResNet
from jzero.models.resnet_config import ResNetConfig
from tests.helpers import build, config, host, mesh_of, restart

N = 8
SGD = {"type": "SGD", "params": {"lr": 1.0}}


class Weights(nnx.Module):
    def __init__(self, rngs):
        self.w = nnx.Param(jnp.zeros((16, 1032), jnp.float32))  # large enough to be divided
        self.norm = nnx.Param(jnp.zeros(4, jnp.float32))
        self.mean = nnx.BatchStat(jnp.full(3, 1 / 3, jnp.float32))


def pull(model, batch):
    """A loss whose gradient is the mean size of the micro-batch, for every element."""
    total = model.w[...].astype(jnp.float32).sum() + model.norm[...].astype(jnp.float32).sum()
    return (total * batch["size"].astype(jnp.float32)).mean()


def sized(*sizes) -> dict[str, np.ndarray]:
    """A batch whose micro-batches have gradients of these sizes."""
    return {"size": np.repeat(np.asarray(sizes, np.float32), N)}


@functools.cache
def puller(stage, accumulation, sections):
    batch, sections = sized(*[0] * accumulation), {"optimizer": SGD, **json.loads(sections)}
    return build(stage, batch, model=Weights, loss_fn=pull, accumulation=accumulation, sections=sections)


def pulled(sizes, stage, **sections):
    """The mean gradient that a step applies, and whether it overflowed."""
    engine = restart(puller(stage, len(sizes), json.dumps(sections)))
    metrics = engine.train_batch(sized(*sizes))
    (applied,) = {*np.unique(-np.float32(engine.params["w"])).tolist()}
    return applied, bool(metrics["overflow"])


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(("dtype", "digits"), [("fp32", 20), ("bf16", 7), ("fp16", 10)])
def test_gradients_are_accumulated_in_the_dtype_asked_for(stage, dtype, digits):
    # Halves of the last digit are rounded away one by one, and would not be if they were added to each other first.
    half = 2.0 ** -(digits + 1)
    kept = 1 + 3 * half if dtype == "fp32" else 1
    assert pulled([4, 4 * half, 4 * half, 4 * half], stage, data_types={"grad_accum_dtype": dtype}) == (kept, False)


BF16_MASTER = {"enabled": True, "bf16_master_weights_and_grads": True}
FP16_MASTER = {"enabled": True, "fp16_master_weights_and_grads": True, "loss_scale": 1}


@pytest.mark.parametrize(
    ("sections", "kept"),
    [
        ({"bf16": {"enabled": True}}, 1 + 3 * 2.0**-8),
        ({"fp16": {"enabled": True, "loss_scale": 1}}, 1 + 3 * 2.0**-8),
        ({"bf16": BF16_MASTER}, 1),
        ({"bf16": BF16_MASTER, "data_types": {"grad_accum_dtype": "fp32"}}, 1 + 2.0**-6),  # rounded to what lasts
    ],
)
def test_without_the_key_they_are_accumulated_as_the_parameters_last(sections, kept):
    assert pulled([4, *[2.0**-6] * 3], 2, **sections) == (kept, False)


@pytest.mark.parametrize("stage", [1, 2])
def test_an_fp16_total_holds_the_mean_of_what_are_sums_over_devices(stage):
    accumulated = {"data_types": {"grad_accum_dtype": "fp16"}}
    assert pulled([2.0**15, 2.0**15], stage, **accumulated) == (2.0**15, False)
    assert pulled([2.0**16, 2.0**16], stage, **accumulated)[1]


def test_fp16_masters_overflow_where_their_mean_gradient_does():
    assert pulled([2.0**14], 3, fp16=FP16_MASTER) == (2.0**14, False)  # 2**17 over all devices
    assert pulled([2.0**16], 3, fp16=FP16_MASTER)[1]


def test_an_fp16_total_of_weighted_gradients_is_refused():
    loss = lambda model, batch: jzero.Mean(pull(model, batch), batch["size"].sum())
    sections = {"data_types": {"grad_accum_dtype": "fp16"}}
    engine = build(1, sized(1, 1), model=Weights, loss_fn=loss, accumulation=2, sections=sections)
    with pytest.raises(ConfigError, match=r"`data_types.grad_accum_dtype` is fp16, in which .* use bf16 or fp32"):
        engine.train_batch(sized(1, 1))


MASTERS = {
    "bf16 master": ({"bf16": BF16_MASTER}, jnp.bfloat16, jnp.float32),
    "bf16 moments": ({"bf16": BF16_MASTER | {"bf16_optimizer_states": True}}, jnp.bfloat16, jnp.bfloat16),
    "fp16 master": ({"fp16": FP16_MASTER}, jnp.float16, jnp.float32),
}


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("case", MASTERS)
def test_what_lasts_in_sixteen_bits_is_updated_in_fp32_and_rounded_once(case, stage):
    sections, param_dtype, kept = MASTERS[case]
    adam = {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1}}
    sections = {**sections, "optimizer": adam, "jzero": {"keep_fp32": ["^norm$"]}}
    engine = build(stage, sized(1), model=Weights, loss_fn=pull, sections=sections)
    ones = {"w": np.ones((16, 1032), np.float32), "norm": np.ones(4, np.float32)}
    engine.state = engine.functional.init(np.uint32(0), ones)

    def state():
        (adam,) = [
            x for x in jax.tree.leaves(engine.state.opt_state, is_leaf=lambda x: hasattr(x, "mu")) if hasattr(x, "mu")
        ]
        return host({"params": engine.params, "mu": adam.mu, "nu": adam.nu})

    # Optax in fp32 for one element, of which as much is kept after each step as lasts.
    optimizer = optax.adamw(0.01, eps=1e-8, weight_decay=0.1)
    dtypes = {"w": (param_dtype, kept), "norm": (jnp.float32, jnp.float32)}
    params = dict.fromkeys(dtypes, jnp.float32(1))
    memory: Any = optimizer.init(params)
    rounded = lambda tree, i: {k: x.astype(dtypes[k][i]).astype(jnp.float32) for k, x in tree.items()}
    for size in (1.0, 0.3, -0.7):
        assert not bool(engine.train_batch(sized(size))["overflow"])
        gradient = jnp.float32(size).astype(param_dtype).astype(jnp.float32)
        with jax.numpy_dtype_promotion("standard"):
            updates, memory = optimizer.update(dict.fromkeys(dtypes, gradient), memory, params)
        params = rounded(optax.apply_updates(params, updates), 0)
        adam, *rest = memory
        memory = (adam._replace(mu=rounded(adam.mu, 1), nu=rounded(adam.nu, 1)), *rest)
        found = state()
        for part, expected, i in (("params", params, 0), ("mu", memory[0].mu, 1), ("nu", memory[0].nu, 1)):
            for name in dtypes:
                x = found[part][name]
                assert x.dtype == dtypes[name][i]
                np.testing.assert_allclose(np.float32(x), float(expected[name]), rtol=1e-6)


def test_masters_have_what_deepspeed_asks_of_them():
    bf16 = {"bf16": {"enabled": True, "bf16_optimizer_states": True}, "zero_optimization": {"stage": 2}}
    with pytest.raises(ConfigError, match=r"`bf16.bf16_optimizer_states` needs `bf16.bf16_master_weights_and_grads`"):
        Config.load(bf16)
    for name, section in (("bf16", BF16_MASTER), ("fp16", FP16_MASTER)):
        key = f"{name}.{name}_master_weights_and_grads"
        with pytest.raises(ConfigError, match=f"`{key}` needs `zero_optimization.stage` 1, 2 or 3"):
            Config.load({name: section})


@pytest.mark.parametrize(
    ("said", "sections", "wrong"),
    [
        ("fp32", {}, None),
        ("bf16", {"bf16": {"enabled": True}}, None),
        ("fp16", {"fp16": {"enabled": True}}, None),
        ("bf16", {"bf16": {"enabled": "auto"}}, None),
        ("bf16", {}, "is bf16, but the switches choose fp32; set `bf16.enabled` to true"),
        ("fp32", {"fp16": {"enabled": True}}, "is fp32, but the switches choose fp16; remove it"),
    ],
)
def test_param_dtype_must_say_what_the_switches_say(said, sections, wrong):
    given = {"data_types": {"param_dtype": said}, **sections}
    if wrong is None:
        assert Config.load(given).data_types.param_dtype == said
    else:
        with pytest.raises(ConfigError, match=f"`data_types.param_dtype` {wrong}"):
            Config.load(given)


@pytest.mark.parametrize(("dtype", "param_dtype"), [(None, jnp.float32), ("bf16", jnp.bfloat16), ("fp16", jnp.float16)])
def test_buffers_last_in_their_dtype(dtype, param_dtype):
    seen = []

    def loss(model, batch):
        seen.append(model.mean.dtype)
        model.mean[...] = model.mean[...] * 2
        return pull(model, batch)

    sections = {"optimizer": SGD, "data_types": {"buffer_dtype": dtype}}
    engine = build(1, sized(0), model=Weights, loss_fn=loss, n_devices=2, sections=sections)
    engine.train_batch(sized(0))
    (mean,) = jax.tree.leaves(engine.state.model_state)
    assert {mean.dtype, *seen} == {jnp.dtype(param_dtype)}
    np.testing.assert_array_equal(np.float64(mean), 2 * np.float64(np.asarray(1 / 3, np.float32).astype(param_dtype)))


GPT_SIZES = GPTConfig(vocab_size=64, seq_len=8, d_model=32, n_layer=2, n_head=2, scan_layers=True)
LLAMA_SIZES = LlamaConfig(vocab_size=64, seq_len=8, d_model=32, n_layer=1, n_head=2, n_kv_head=1, d_ff=32)
TOKENS = {"tokens": np.zeros((8, 9), np.int32)}
IMAGES = {"image": np.zeros((8, 16, 16, 3), np.float32), "label": np.zeros(8, np.int32)}
FAMILIES = {
    "gpt": (lambda rngs: GPT(GPT_SIZES, rngs=rngs), next_token_loss, TOKENS, "ln_"),
    "llama": (lambda rngs: Llama(LLAMA_SIZES, rngs=rngs), next_token_loss, TOKENS, "norm"),
    "resnet": (
        lambda rngs: ResNet(ResNetConfig(depth=6, n_classes=4, width=16), rngs=rngs),
        classification_loss,
        IMAGES,
        r"\.norm\.",
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_jzeros_own_models_compute_as_before_with_their_norms_in_fp32(family):
    """Strict promotion would refuse a mixture, so that a step that can be traced has none."""
    model, loss, batch, pattern = FAMILIES[family]
    sections = {"bf16": {"enabled": True}, "jzero": {"keep_fp32": [pattern]}}
    fns = jzero.functional(
        model=model,
        loss_fn=loss,
        config=Config.load(config(3, 8, **sections)).resolve(world=8),
        sample_batch=batch,
        mesh=mesh_of(8),
    )
    travels = {}
    for leaf in explain(fns):
        travels.setdefault("norm" in leaf.name or "ln_" in leaf.name, set()).add(leaf.gather_dtype)
    assert travels[True] == {"float32"}
    assert travels[False] - {""} == {"bfloat16"}


def test_kept_parameters_enter_the_loss_in_fp32():
    seen = {}

    def loss(model, batch):
        seen.update(w=model.w.dtype, norm=model.norm.dtype)
        return pull(model, batch)

    for kept, dtype in ((["no", "^norm$"], jnp.float32), ([], jnp.bfloat16)):
        sections = {"bf16": {"enabled": True}, "jzero": {"keep_fp32": kept}}
        build(1, sized(0), model=Weights, loss_fn=loss, sections=sections)
        assert seen == {"w": jnp.bfloat16, "norm": dtype}


def test_a_pattern_that_fits_nothing_or_is_none_is_refused():
    sections = {"jzero": {"keep_fp32": ["norm", "rotary"]}}
    message = r"`jzero.keep_fp32`: 'rotary' fits no parameter and no leaf of the batch; the model has norm, w, the ba"
    with pytest.raises(ConfigError, match=message):
        build(1, sized(0), model=Weights, loss_fn=pull, sections=sections)
    with pytest.raises(ConfigError, match=r"`jzero.keep_fp32` holds '\(', which is no regular expression"):
        Config.load({"jzero": {"keep_fp32": ["("]}})


@pytest.mark.parametrize("auto_cast", [True, False])
def test_floating_inputs_are_cast_whether_or_not_auto_cast_says_so(auto_cast):
    seen = {}

    def loss(model, batch):
        seen["size"] = batch["size"].dtype
        return pull(model, batch)

    fp16 = {"enabled": True, "auto_cast": auto_cast}
    engine = build(1, sized(0), model=Weights, loss_fn=loss, sections={"fp16": fp16})
    assert seen["size"] == jnp.float16
    assert any(note.startswith("`fp16.auto_cast` has no effect") for note in engine.config.notes) is auto_cast


def test_a_leaf_of_the_batch_that_is_named_enters_the_loss_as_it_is(caplog):
    def loss(model, batch):
        shown = pull(model, batch) + pull(model, {"size": batch["time"]})
        return shown * 0 + jnp.abs(batch["time"]).astype(jnp.float32).mean(), {
            name: jnp.float32(jnp.finfo(x.dtype).bits) for name, x in batch.items()
        }

    caplog.set_level("INFO", "jzero")
    batch = {"time": np.full(16, 999.0, np.float32), "size": np.ones(16, np.float32)}
    sections = {"bf16": {"enabled": True}, "jzero": {"keep_fp32": [r"^batch\.time$"]}}
    kept = build(3, batch, model=Weights, loss_fn=loss, sections=sections).train_batch(batch)
    assert (float(kept["loss"]), float(kept["time"]), float(kept["size"])) == (999.0, 32, 16)
    assert "batch.size enters the loss in bf16; `jzero.keep_fp32` keeps what it names" in caplog.text
    rounded = build(3, batch, model=Weights, loss_fn=loss, sections={"bf16": {"enabled": True}}).train_batch(batch)
    assert (float(rounded["loss"]), float(rounded["time"])) == (1000.0, 16)
