"""A model that calls back to the host is planned by the closed form; compiling it for absent GPUs is refused."""

import jax
import jax.numpy as jnp
import pytest

from jzero.errors import JzeroError
from jzero.plan import compile_step, estimate_step


class Linear:
    def init(self, key, batch):
        return {"w": jnp.ones((16, 16))}


def loss_fn(params, batch):
    y = batch["x"] @ params["w"]
    mean = jax.lax.stop_gradient(y.mean())
    seen = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), mean)
    return jnp.square(y).mean() + 0 * seen


RUN = {
    "model": Linear(),
    "loss_fn": loss_fn,
    "config": {"train_batch_size": 8, "optimizer": {"type": "Adam"}},
    "sample_batch": {"x": jax.ShapeDtypeStruct((8, 16), jnp.float32)},
}


def test_it_is_said_why_and_what_to_do():
    with pytest.raises(JzeroError, match=r"calls a function of the host.*closed form"):
        compile_step(**RUN)


def test_the_closed_form_answers():
    assert estimate_step(**RUN).parameters == 4 * 16 * 16
