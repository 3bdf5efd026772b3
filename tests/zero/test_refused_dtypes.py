"""What JAX does not compute in 16 bits is a sentence that says where and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero

BATCH = {"x": np.ones((8, 16), np.float32)}


class Spectral:
    def init(self, key, batch):
        return {"mix": jnp.ones((16, 16)), "out": jnp.ones((16, 16))}


def loss_fn(params, batch):
    mixed = jnp.fft.rfft(batch["x"].astype(params["mix"].dtype) @ params["mix"], axis=-1)
    return jnp.square(jnp.fft.irfft(mixed).astype(params["out"].dtype) @ params["out"]).astype(jnp.float32).mean()


def initialize(**jzero_keys):
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "optimizer": {"type": "Adam"}, "jzero": jzero_keys}
    return jzero.initialize(model=Spectral(), loss_fn=loss_fn, config=config, sample_batch=BATCH)


def test_it_names_the_operation_its_line_and_the_key_that_helps():
    line = loss_fn.__code__.co_firstlineno + 1
    words = rf"cannot be computed in bfloat16.*RFFT input.*test_refused_dtypes.py, line {line}\).*`jzero.keep_fp32`"
    with pytest.raises(jzero.ModelError, match=words):
        initialize()


def test_the_key_helps():
    assert np.isfinite(jax.device_get(initialize(keep_fp32=["mix"]).train_batch(BATCH)["loss"]))


def test_other_errors_stay_what_they_are():
    def broken(params, batch):
        raise ValueError("no such thing")

    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "optimizer": {"type": "Adam"}}
    with pytest.raises(ValueError, match=r"^no such thing"):
        jzero.initialize(model=Spectral(), loss_fn=broken, config=config, sample_batch=BATCH)
