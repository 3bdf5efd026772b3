"""What a function keeps for the backward pass, and that it still has the derivatives that it had."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.models import ops
from jzero.ops.recompute import keeping_inputs

X = jax.random.normal(jax.random.key(0), (4, 256)).astype(jnp.bfloat16)
SCALE, BIAS = jnp.linspace(0.5, 2, 256, dtype=jnp.bfloat16), jnp.linspace(-1, 1, 256, dtype=jnp.bfloat16)
CASES = {
    "rms_norm": (lambda x, scale: ops.rms_norm(x, scale, 1e-5), (X, SCALE)),
    "layer_norm": (ops.layer_norm, (X, SCALE, BIAS)),
    "gelu": (ops.gelu, (X,)),
    "swiglu": (ops.swiglu, (X, X[::-1])),
}


def kept(f, inputs):
    """Bytes of the arrays that a function keeps for the backward pass."""
    return sum(x.nbytes for x in jax.tree.leaves(jax.vjp(f, *inputs)[1]) if hasattr(x, "nbytes"))


@pytest.mark.parametrize("name", CASES)
def test_the_models_keep_what_their_elementwise_parts_were_given(name):
    f, inputs = CASES[name]
    needed = inputs[:2]  # not a bias, which is only added
    assert kept(f, inputs) == sum(x.nbytes for x in needed)


def test_without_it_more_is_kept():
    assert kept(lambda x: jax.nn.gelu(x, approximate=True), (X,)) > 2 * X.nbytes


@pytest.mark.parametrize("n_scanned", [0, 3])
def test_values_and_gradients_are_those_of_jax(n_scanned):
    def plain(x, scale):
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + 1e-5)
        return (jax.nn.silu(y) * scale.astype(jnp.float32)).astype(x.dtype)

    def run(f):
        def loss(x, scale):
            if n_scanned:
                x = jax.lax.scan(lambda x, _: (f(x, scale), None), x, None, length=n_scanned)[0]
            return f(x, scale).astype(jnp.float32).sum()

        return jax.jit(jax.value_and_grad(loss, (0, 1)))(X, SCALE)

    jax.tree.map(np.testing.assert_array_equal, run(keeping_inputs(plain)), run(plain))
