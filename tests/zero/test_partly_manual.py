"""What JAX cannot take while the compiler divides an axis is refused in a sentence that names the line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from jzero.errors import ModelError
from jzero.plan import gpu_mesh
from jzero.start import functional

BATCH = {"x": jax.ShapeDtypeStruct((8, 64, 512), jnp.float32)}


class Model:
    def init(self, key, batch):
        return {"w": jax.random.normal(key, (512, 512))}


def cudnn(x):
    x = x.reshape(*x.shape[:2], 8, 64)
    return jax.nn.dot_product_attention(x, x, x, implementation="cudnn")


def callback(x):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return x + jax.pure_callback(lambda v: np.tanh(v), shape, jax.lax.stop_gradient(x))


def built(part, mesh):
    return functional(
        model=Model(),
        loss_fn=lambda params, batch: (part(batch["x"] @ params["w"]).astype(jnp.float32) ** 2).mean(),
        config={
            "train_batch_size": 8,
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 3},
            "optimizer": {"type": "AdamW"},
        },
        sample_batch=BATCH,
        mesh=mesh,
    )


@pytest.mark.parametrize(
    ("part", "what"),
    [
        (cudnn, "cuDNN's attention"),
        (callback, r"a callback to the host \(.*test_partly_manual.py:\d+.* \(callback\)\)"),
    ],
)
def test_it_is_refused_where_the_compiler_divides_an_axis(part, what):
    devices = list(gpu_mesh(n_gpus=8).devices.flat) if part is cudnn else jax.devices()
    with pytest.raises(ModelError, match=rf"{what}, which .* the axis `tensor` has 2 devices"):
        built(part, jzero.make_mesh(devices, tensor=2))
    assert built(part, jzero.make_mesh(devices)).placements


def test_jzero_s_own_attention_takes_blocks_there():
    attend = lambda x: jzero.attention(*[x.reshape(*x.shape[:2], 8, 64)] * 3)
    assert built(attend, jzero.make_mesh(list(gpu_mesh(n_gpus=8).devices.flat), tensor=2)).placements
