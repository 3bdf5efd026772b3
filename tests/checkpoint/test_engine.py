"""Engines load parts of checkpoints, other layer forms and other precisions, and say what does not fit."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jzero
from jzero import models
from jzero.checkpoint import Selection, read_header
from jzero.checkpoint.format.header import Leaf
from jzero.checkpoint.format.leaves import by_name
from jzero.checkpoint.run.selection import match
from jzero.flax.adapter import adapt
from jzero.train.resume import LAYER_FORMS
from tests.helpers import D_IN, D_OUT, batches, build, host, squared_error

STEPS = batches(4, 8)


class Net(nnx.Module):
    """A body, a head, and an adapter beside the body."""

    def __init__(self, rngs: nnx.Rngs, n_out: int = D_OUT):
        self.body = nnx.Linear(D_IN, 16, rngs=rngs)
        self.lora_a = nnx.Param(jax.random.normal(rngs.params(), (D_IN, 2)))
        self.head = nnx.Linear(16, n_out, rngs=rngs)

    def __call__(self, x):
        x = self.body(x) + (x @ self.lora_a[...]).sum(-1, keepdims=True)
        return self.head(x)[..., :1]


def loss_fn(model, batch):
    return squared_error(model, {"x": batch["x"], "y": batch["y"][:, :1]})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """An engine two steps on, and its checkpoint."""
    engine = build(2, STEPS[0], model=Net, loss_fn=loss_fn, n_devices=2, seed=1)
    for batch in STEPS[:2]:
        engine.train_batch(batch)
    path = tmp_path_factory.mktemp("engine") / "c"
    engine.save_checkpoint(path)
    return engine, path


@pytest.fixture(scope="module")
def fresh():
    """Returns a function that gives another engine of the same model, at its first step."""
    engine = build(3, STEPS[0], model=Net, loss_fn=loss_fn, n_devices=4)

    def restart():
        engine.state = engine.functional.init(np.uint32(0))
        return engine, host(engine.state)

    return restart


def equal(a, b):
    return jax.tree.all(jax.tree.map(np.array_equal, a, b))


def test_parameters_alone(trained, fresh):
    engine, before = fresh()
    engine.load_checkpoint(trained[1], only="params/*")
    assert equal(host(engine.params), host(trained[0].params))
    after = host(engine.state)
    assert equal(replace(after, params=before.params), before)
    engine.train_batch(STEPS[0])


def test_adapters_alone(trained, fresh, tmp_path):
    trained[0].save_checkpoint(tmp_path / "c", only="params/*lora*")
    assert list(read_header(tmp_path / "c")[1].leaves) == ["params/lora_a"]
    engine, before = fresh()
    with pytest.raises(jzero.CheckpointError, match="of this model's leaves are missing in it"):
        engine.load_checkpoint(tmp_path / "c")
    engine.load_checkpoint(tmp_path / "c", only="params/*lora*")
    after = host(engine.state)
    assert equal(after.params["lora_a"], host(trained[0].params)["lora_a"])
    assert equal(after.params["body"], before.params["body"])


def test_a_changed_head(trained, caplog):
    engine = build(1, STEPS[0], model=lambda rngs: Net(rngs, 3), loss_fn=loss_fn, n_devices=2)
    before = host(engine.params)
    with pytest.raises(
        jzero.CheckpointError, match=r"params/head/kernel is float32\[16,8\] there and float32\[16,3\] here"
    ):
        engine.load_checkpoint(trained[1])
    engine.train_batch(STEPS[0])  # nothing was lost
    engine.state = engine.functional.init(np.uint32(0))
    engine.load_checkpoint(trained[1], only="params/*", changed="keep")
    after = host(engine.params)
    assert equal(after["head"], before["head"])
    assert equal(after["body"], host(trained[0].params)["body"])
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert 'keep their present values, as changed="keep" says (params/head/bias is float32[8] there' in said


def test_a_head_that_grows_keeps_its_columns(trained, caplog):
    engine = build(3, STEPS[0], model=lambda rngs: Net(rngs, 11), loss_fn=loss_fn, n_devices=2)
    before, old = host(engine.params), host(trained[0].params)["head"]["kernel"]
    engine.load_checkpoint(trained[1], only="params/*", grow="pad")
    after = host(engine.params)
    assert equal(after["head"]["kernel"], np.concatenate([old, before["head"]["kernel"][:, 8:]], axis=1))
    assert 'as grow="pad" says (params/head/bias is float32[8] there and float32[11] here' in caplog.text


def test_what_is_saved_can_be_read_without_loading(trained):
    _, header = read_header(trained[1])
    facts = header.metadata
    assert (facts["step"], facts["applied_steps"], facts["skipped_steps"]) == (2, 2, 0)
    assert facts["n_params"] == sum(x.size for x in jax.tree.leaves(trained[0].params))
    assert facts["layout"] == {
        "stage": 2,
        "precision": "fp32",
        "mesh": {"replica": 1, "shard": 2, "tensor": 1},
        "processes": 1,
        "divided": facts["layout"]["divided"],
    }
    assert facts["config"]["optimizer"]["params"]["lr"] == 0.01
    assert facts["config"]["train_micro_batch_size_per_gpu"] == 4
    assert facts["versions"]["jax"] == jax.__version__


class Layers:
    """Three layers, one by one or stacked."""

    def __init__(self, scanned: bool):
        self.scanned = scanned

    def init(self, key, batch):
        layers = [{"w": jax.random.normal(k, (D_IN, D_IN)) / D_IN**0.5} for k in jax.random.split(key, 3)]
        return {"h": jax.tree.map(lambda *x: jnp.stack(x), *layers) if self.scanned else layers}

    def loss(self, params, batch):
        layer = lambda x, layer: (jnp.tanh(x @ layer["w"]), None)
        x = batch["x"]
        if self.scanned:
            x, _ = jax.lax.scan(layer, x, params["h"])
        else:
            for one in params["h"]:
                x, _ = layer(x, one)
        return (x**2).mean()


def test_layers_go_from_unrolled_to_scanned_and_back(tmp_path):
    unrolled, scanned = (
        build(stage, STEPS[0], model=Layers(form), loss_fn=Layers(form).loss, n_devices=n)
        for stage, form, n in ((3, False, 2), (2, True, 8))
    )
    for batch in STEPS[:2]:
        unrolled.train_batch(batch)
    unrolled.save_checkpoint(tmp_path / "unrolled")
    expected = host(unrolled.state)
    with pytest.raises(jzero.CheckpointError, match="is of another model"):
        scanned.load_checkpoint(tmp_path / "unrolled")
    scanned.load_checkpoint(tmp_path / "unrolled", layers={"h/*": "h"})
    scanned.save_checkpoint(tmp_path / "scanned")
    loss = float(scanned.train_batch(STEPS[2])["loss"])
    unrolled.state = unrolled.functional.init(np.uint32(3))
    unrolled.load_checkpoint(tmp_path / "scanned", layers={"h/*": "h"})
    assert equal(host(unrolled.state), expected)
    assert float(unrolled.train_batch(STEPS[2])["loss"]) == pytest.approx(loss, rel=1e-6)


SIZES = {"vocab_size": 64, "seq_len": 8, "d_model": 16, "n_layer": 3, "n_head": 2}
IMAGES = {"image_size": 8, "patch_size": 4, "n_classes": 3, "d_model": 16, "n_layer": 3, "n_head": 2}


@pytest.mark.parametrize(
    "model", [{"family": "gpt"}, {"family": "gpt", "api": "linen"}, {"family": "llama"}, {"family": "vit"}]
)
def test_the_models_that_jzero_ships_have_both_forms(model):
    sizes = IMAGES if model["family"] == "vit" else SIZES
    batch = {
        "tokens": np.zeros((1, 9), np.int32),
        "image": np.zeros((1, 8, 8, 3), np.float32),
        "label": np.zeros(1, int),
    }

    def leaves(scan: bool):
        built = models.build({**model, **sizes, "scan_layers": scan})
        params, _ = jax.eval_shape(adapt(built.factory, built.loss_fn).init, jax.random.key(0), batch)
        return {name: Leaf(x.shape, str(x.dtype)) for name, x in by_name({"params": params}).items()}

    for there, here in ((False, True), (True, False)):
        sources = match("c", leaves(there), leaves(here), Selection(layers=LAYER_FORMS)).sources
        assert sources.keys() == leaves(here).keys()
        assert any(source.stacked or source.index is not None for source in sources.values())


def test_parameters_that_last_in_another_precision_are_rounded(trained):
    sections = {"bf16": {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}}
    engine = build(2, STEPS[0], model=Net, loss_fn=loss_fn, n_devices=8, sections=sections)
    engine.load_checkpoint(trained[1])
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), host(trained[0].params))
    assert {str(x.dtype) for x in jax.tree.leaves(engine.params)} == {"bfloat16"}
    assert equal(host(engine.params), rounded)
    engine.train_batch(STEPS[0])
