"""Flops of products and convolutions against the formulas, in compiled programs and in library calls."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from jzero.plan.compiled.flops import FlopCounter
from jzero.plan.compiled.hlo import parse_module
from jzero.plan.compiled.topology import compile_only, gpu_mesh


def gpu_flops(f, *shapes):
    sharding = jax.sharding.SingleDeviceSharding(gpu_mesh("h100-80g", n_gpus=1).devices.flat[0])
    structs = [jax.ShapeDtypeStruct(shape, jnp.float32, sharding=sharding) for shape in shapes]
    module = parse_module(compile_only(jax.jit(f).lower(*structs)).as_text() or "")
    return FlopCounter(module).computation(module.entry)


def test_products_in_fusions_and_loops():
    def f(x, w):
        x, _ = jax.lax.scan(lambda x, w: (jax.nn.relu(x @ w), None), x, w)
        return jnp.einsum("nd,md->nm", x, x)

    assert gpu_flops(f, (64, 128), (3, 128, 128)) == 2 * 64 * 128 * (3 * 128 + 64)


def test_batched_products():
    assert gpu_flops(partial(jnp.einsum, "bij,bjk->bik"), (3, 32, 64), (3, 64, 16)) == 2 * 3 * 32 * 64 * 16


@pytest.mark.parametrize("which", ["forward", "both gradients"])
def test_convolutions(which):
    """8 images of 28 x 28 outputs, 64 -> 128 features, 3 x 3; each gradient costs what the forward pass does."""

    def f(x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    forward = 2 * (8 * 28 * 28 * 128) * (3 * 3 * 64)
    gradients = jax.grad(lambda x, w: (f(x, w) ** 2).sum(), argnums=(0, 1))
    shapes = (8, 28, 28, 64), (3, 3, 64, 128)
    expected = {"forward": (f, forward), "both gradients": (gradients, 3 * forward)}
    function, flops = expected[which]
    assert gpu_flops(function, *shapes) == flops


def test_library_calls():
    text = """\
ENTRY %main (a: bf16[64,32], b: bf16[32,16]) -> bf16[64,16] {
  %a = bf16[64,32]{1,0} parameter(0)
  %b = bf16[32,16]{1,0} parameter(1)
  %gemm = (bf16[64,16]{1,0}, s8[4096]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", backend_config=GEMM
  ROOT %out = bf16[64,16]{1,0} get-tuple-element(%gemm), index=0
}
"""
    gemm = '{"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}'
    text = text.replace("GEMM", gemm)
    assert FlopCounter(parse_module(text)).computation("main") == 2 * 64 * 32 * 16
