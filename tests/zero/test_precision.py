"""Which dtype each thing has, seen from inside the loss and from the lasting state."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jzero
from jzero.zero.precision import precision_of
from tests.helpers import build

SECTIONS = {"fp32": {}, "bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True}}}
DTYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16, "fp16": jnp.float16}
BATCH = {"x": np.ones((8, 16), np.float32), "i": np.arange(8, dtype=np.int32), "b": np.ones(8, bool)}


class Mixed(nnx.Module):
    """Parameters of several dtypes, integers among them."""

    def __init__(self, rngs):
        self.w = nnx.Param(jnp.ones((16, 8), jnp.float32))
        self.half = nnx.Param(jnp.ones((16, 8), jnp.bfloat16))
        self.table = nnx.Param(jnp.arange(16, dtype=jnp.int32))
        self.statistic = nnx.BatchStat(jnp.ones(3, jnp.float32))


@pytest.mark.parametrize("name", SECTIONS)
def test_the_table(name):
    dtypes = precision_of(jzero.Config.load(SECTIONS[name]))
    assert dtypes.compute == (None if name == "fp32" else DTYPES[name])
    assert dtypes.reduce == dtypes.accumulate == jnp.float32
    params = {"i": jnp.ones(1, jnp.int32), "f": jnp.ones(1, jnp.float32), "b": jnp.ones(1, jnp.bfloat16)}
    cast = () if name == "fp32" else (jnp.dtype(DTYPES[name]),)
    assert dtypes.casts(params) == {"i": (), "f": cast, "b": cast}
    stored = {k: x.dtype for k, x in dtypes.master_params(params).items()}
    assert stored == {"i": jnp.int32, "f": jnp.float32, "b": jnp.bfloat16 if name == "fp32" else jnp.float32}


@pytest.mark.parametrize(("grad_reduce", "dtype"), [*DTYPES.items(), ("bfp16", jnp.bfloat16)])
def test_gradients_travel_in_the_configured_dtype(grad_reduce, dtype):
    assert precision_of(jzero.Config.load({"communication_data_type": grad_reduce})).reduce == dtype


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("name", SECTIONS)
def test_the_loss_computes_in_the_configured_dtype_and_the_state_lasts_in_fp32(name, stage):
    seen = {}

    def loss(model, batch):
        seen.update({k: x.dtype for k, x in batch.items()})
        seen.update(w=model.w.dtype, half=model.half.dtype, table=model.table.dtype, statistic=model.statistic.dtype)
        product = (batch["x"] @ model.w[...]).astype(jnp.float32) + (
            batch["x"].astype(jnp.bfloat16) @ model.half[...].astype(jnp.bfloat16)
        ).astype(jnp.float32)
        return (product**2).mean() * 1e-3

    engine = build(stage, BATCH, model=Mixed, loss_fn=loss, sections=SECTIONS[name])
    metrics = engine.train_batch(BATCH)
    floats = DTYPES[name]
    assert seen["x"] == seen["w"] == floats
    assert seen["half"] == (jnp.bfloat16 if name == "fp32" else floats)
    assert (seen["i"], seen["b"], seen["table"]) == (jnp.int32, jnp.bool_, jnp.int32)
    assert seen["statistic"] == jnp.float32
    assert metrics["loss"].dtype == metrics["grad_norm"].dtype == jnp.float32
    params = engine.params
    assert params["w"].dtype == jnp.float32
    assert params["half"].dtype == (jnp.bfloat16 if name == "fp32" else jnp.float32)
    assert params["table"].dtype == jnp.int32
    np.testing.assert_array_equal(params["table"], np.arange(16))
    assert not np.allclose(np.asarray(params["w"]), 1)
    moments = {x.dtype for x in jax.tree.leaves(engine.state.opt_state) if x.shape == (16, 8)}
    assert moments == ({jnp.dtype("float32"), jnp.dtype("bfloat16")} if name == "fp32" else {jnp.dtype("float32")})


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_updates_smaller_than_sixteen_bits_resolve_add_up_in_the_master(name):
    optimizer = {"optimizer": {"type": "SGD", "params": {"lr": 1e-4 * 128}}}
    loss = lambda model, batch: -model.w[...].astype(jnp.float32).mean() + 0 * batch["x"].sum().astype(jnp.float32)
    engine = build(2, BATCH, model=Mixed, loss_fn=loss, sections={**SECTIONS[name], **optimizer})
    for _ in range(3):
        engine.train_batch(BATCH)
    np.testing.assert_allclose(np.asarray(engine.params["w"]), 1 + 3e-4, rtol=1e-6)


def test_an_nnx_embedding_follows_the_precision_though_it_was_made_in_fp32():
    seen = {}

    def loss(model, batch):
        seen["embedded"] = model(batch["i"] % 4).dtype
        return model(batch["i"] % 4).astype(jnp.float32).mean()

    batch = {"i": BATCH["i"]}
    build(1, batch, model=lambda rngs: nnx.Embed(4, 3, rngs=rngs), loss_fn=loss, sections=SECTIONS["bf16"])
    assert seen["embedded"] == jnp.bfloat16
