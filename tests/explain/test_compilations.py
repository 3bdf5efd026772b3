"""The engine says when its step was compiled, and what somebody did to have it compiled again."""

import dataclasses
import logging

import jax
import numpy as np
import pytest
from flax import nnx

import jzero
from jzero.explain.compilations import why_compiled_again
from jzero.jaxpr.compilations import keep_compiled_in, watch

BATCH = {"x": np.ones((8, 16), np.float32)}


@pytest.fixture
def engine():
    return jzero.initialize(
        model=lambda rngs: nnx.Linear(16, 16, rngs=rngs),
        loss_fn=lambda model, batch: (model(batch["x"]) ** 2).mean(),
        config={
            "train_batch_size": 8,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        },
        sample_batch=BATCH,
    )


def sentences(caplog, level):
    return [r.getMessage() for r in caplog.records if r.name == "jzero" and r.levelno == level]


def test_it_says_what_compiled_and_why_it_compiled_again(engine, caplog):
    caplog.set_level(logging.INFO, "jzero")
    for _ in range(4):
        engine.train_batch(BATCH)
    assert [s for s in sentences(caplog, logging.INFO) if s.startswith("compiled the step in ")]
    assert not sentences(caplog, logging.WARNING)

    with jax.default_matmul_precision("float32"):
        engine.train_batch(BATCH)
    engine.train_batch(BATCH)  # its program is there still
    (again,) = sentences(caplog, logging.WARNING)
    assert again.endswith(
        "again, at step 5 of this engine: the setting jax_default_matmul_precision of JAX was None and is float32."
    )

    whole = jax.NamedSharding(engine.mesh, jax.P())
    engine.state = dataclasses.replace(engine.state, params=jax.device_put(engine.state.params, whole))
    with pytest.warns(UserWarning, match="donated buffers"):
        engine.train_batch(BATCH)
    again = sentences(caplog, logging.WARNING)[-1]
    assert "at step 7 of this engine: params.bias of the engine's state was replaced by an array of sharding" in again


def test_an_engine_whose_functions_another_one_has_compiled_goes_on(engine, caplog):
    for _ in range(2):
        engine.train_batch(BATCH)
    again = jzero.Engine(engine.functional, engine.state)
    for _ in range(2):
        again.train_batch(BATCH)
    with jax.default_matmul_precision("float32"):
        again.train_batch(BATCH)
    (warning,) = sentences(caplog, logging.WARNING)
    assert "again, at step 3 of this engine" in warning


def test_what_else_may_have_been_replaced():
    like = {"a": jax.ShapeDtypeStruct((2,), np.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))}
    array = lambda shape, dtype: jax.device_put(np.zeros(shape, dtype))
    why = lambda given: why_compiled_again(like, given, {}, {})
    assert why({}) == "the engine's state was replaced by one of 0 arrays instead of 1"
    assert why({"b": array(2, np.float32)}) == "the engine's state was replaced by one without a"
    assert "an array of shape (3,) instead of (2,), dtype int32 instead of float32" in why({"a": array(3, np.int32)})


def test_the_cache_on_disk_is_told_apart(tmp_path):
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    keep_compiled_in(str(tmp_path))
    try:
        found = []
        for _ in range(2):
            with watch() as compilations:
                jax.jit(lambda x: x * 3 + 5)(np.ones(3)).block_until_ready()
            found.append((compilations.n_asked, compilations.n_from_cache))
            jax.clear_caches()
    finally:
        keep_compiled_in(None)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", before)
    (asked, first), (asked_again, second) = found
    assert asked == asked_again > 0 == first
    assert second == asked
