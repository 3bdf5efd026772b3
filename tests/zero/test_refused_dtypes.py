"""What JAX does not compute in 16 bits is a sentence that says where and what to do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero

BATCH = {"x": np.ones((8, 16), np.float32)}


WIDER = r"(takes float32 and wider|does not accept dtype bfloat16)"  # JAX 0.12 says it itself


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


def by_carry(params, batch):
    """A hidden state in fp32, as decoders have it."""
    step = lambda h, _: (jnp.tanh(h.astype(params["mix"].dtype) @ params["mix"]), None)
    return jax.lax.scan(step, jnp.zeros((4, 16), jnp.float32), None, 2)[0].mean()


def by_branch(params, batch):
    return jax.lax.cond(batch["x"].sum() > 0, lambda: params["mix"], lambda: jnp.zeros((16, 16), jnp.float32)).mean()


def by_assertion(params, batch):
    assert batch["x"].dtype == jnp.float32, f"coordinates are {batch['x'].dtype}"
    return params["mix"].mean()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (by_carry, r"scan body .* carry .* has type float32\[4,16\] .* bfloat16\[4,16\]"),
        (by_branch, "cond branches must have equal output types"),
        (by_assertion, "coordinates are bfloat16"),
        (
            lambda params, batch: jnp.linalg.eigvalsh(params["mix"]).sum(),
            "eigh " + WIDER,
        ),
        (
            lambda params, batch: jax.jit(jnp.linalg.inv)(params["mix"]).sum(),
            "lu " + WIDER,
        ),
    ],
    ids=["carry", "branch", "assertion", "eigenvalues", "inverse"],
)
def test_whatever_does_not_take_it_is_named(loss, said):
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "optimizer": {"type": "Adam"}}
    words = rf"cannot be computed in bfloat16.*{said}.*test_refused_dtypes.py.*`jzero.keep_fp32`.*batch\.x"
    with pytest.raises(jzero.ModelError, match=words):
        jzero.functional(model=Spectral(), loss_fn=loss, config=config, sample_batch=BATCH)


def test_the_key_helps():
    assert np.isfinite(jax.device_get(initialize(keep_fp32=["mix"]).train_batch(BATCH)["loss"]))


def test_other_errors_stay_what_they_are():
    def broken(params, batch):
        raise ValueError("no such thing")

    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "optimizer": {"type": "Adam"}}
    with pytest.raises(ValueError, match=r"^no such thing"):
        jzero.initialize(model=Spectral(), loss_fn=broken, config=config, sample_batch=BATCH)
