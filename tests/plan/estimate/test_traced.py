"""What a trace says of kernels and messages, against what can be counted by hand."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import jzero
from jzero.plan.estimate.traced import products, traced_work
from jzero.plan.hardware.kernel import Kernel

N, D = 64, 32
X, W = jax.ShapeDtypeStruct((N, D), jnp.float32), jax.ShapeDtypeStruct((D, D), jnp.float32)
A, B = 4 * N * D, 4 * D * D  # bytes
PRODUCT = Kernel({"f32": 2 * N * D * D}, 2 * A + B)


def kernels(f, *args):
    """Kernels of the outermost block, and of those inside, with how often they run."""
    blocks = traced_work(jax.make_jaxpr(f)(*args), {}).blocks
    return [(block.times, kernel) for block in blocks for kernel in block.kernels]


def test_elementwise_operations_are_one_pass_over_what_they_read():
    assert kernels(lambda x, w: jnp.tanh(2 * x + 1) @ w, X, W) == [(1, Kernel(n_bytes=2 * A)), (1, PRODUCT)]
    assert kernels(lambda x, w: (x @ w).T.reshape(-1), X, W) == [(1, PRODUCT)]


def test_neighbours_share_what_they_read():
    """A softmax reads its operand once, besides two columns of maxima and sums, and writes its result once."""
    moved = sum(kernel.n_bytes for _, kernel in kernels(lambda x: jax.nn.softmax(x, axis=-1), X))
    assert 2 * A <= moved <= 2 * A + 4 * 4 * N


def test_a_slice_reads_no_more_than_the_slice():
    stacked = jax.ShapeDtypeStruct((10, N, D), jnp.float32)
    found = kernels(lambda stack, i, w: lax.dynamic_index_in_dim(stack, i, keepdims=False) @ w, stacked, 3, W)
    assert sum(kernel.n_bytes for _, kernel in found) == 2 * A + PRODUCT.n_bytes


def test_loops_count_their_rounds_and_the_slices_of_their_stacks():
    stacked = jax.ShapeDtypeStruct((5, D, D), jnp.float32)
    found = kernels(lambda x, ws: lax.scan(lambda x, w: (x @ w, None), x, ws)[0], X, stacked)
    assert found == [(5, Kernel(n_bytes=2 * B)), (5, PRODUCT)]
    stacked_up = kernels(lambda x, w: lax.scan(lambda x, _: (x, (x @ w, 2 * x)), x, None, length=5), X, W)
    assert stacked_up == [(5, PRODUCT), (5, Kernel(n_bytes=2 * A)), (5, Kernel(n_bytes=2 * A))]  # a copy, and a double


def test_of_branches_the_longest_counts():
    def f(p, x, w):
        return lax.cond(p, lambda: x, lambda: x @ w @ w)

    assert [found for found in kernels(f, True, X, W) if found[1].flops] == [(1, PRODUCT), (1, PRODUCT)]


def test_rematerialised_products_count_again():
    def loss(w, x, wrap):
        return wrap(lambda x: jnp.sin(x @ w) @ w)(x).sum()

    flops = lambda wrap: sum(
        times * kernel.flops.get("f32", 0) for times, kernel in kernels(jax.grad(lambda w, x: loss(w, x, wrap)), W, X)
    )
    once = PRODUCT.flops["f32"]
    assert flops(lambda f: f) == 5 * once  # no gradient of the input is wanted
    assert flops(jax.checkpoint) == 6 * once


@pytest.mark.parametrize("strides", [1, 2])
def test_convolutions_and_their_gradients(strides):
    """8 images of 28 x 28, 16 -> 32 features, 3 x 3: each pass multiplies what the forward pass does."""

    def f(x, k):
        return lax.conv_general_dilated(x, k, (strides, strides), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 28, 28, 16), (3, 3, 16, 32))]
    forward = 2 * 8 * (28 // strides) ** 2 * 32 * 3 * 3 * 16
    assert products(jax.make_jaxpr(f)(*shapes)) == {"f32": forward}
    gradients = jax.grad(lambda x, k: (f(x, k) ** 2).sum(), argnums=(0, 1))
    assert products(jax.make_jaxpr(gradients)(*shapes))["f32"] == pytest.approx(3 * forward, rel=0.01)


def test_rates_go_by_the_dtype_of_what_is_multiplied():
    half = jax.ShapeDtypeStruct((N, N), jnp.bfloat16)
    f = lambda x, h: ((x @ x.T), jnp.matmul(h, h, preferred_element_type=jnp.float32))
    assert products(jax.make_jaxpr(f)(X, half)) == {"f32": 2 * N * N * D, "bf16": 2 * N**3}


def test_messages_are_counted_where_they_are_sent():
    """Per round a gather of 2 MiB along both axes; after the loop small sums, which travel together."""
    mesh = jzero.make_mesh(jax.devices()[:8], replica=2)
    shard = jax.ShapeDtypeStruct((2**19,), jnp.float32)

    def local(x):
        gathered = lambda c, _: (c + lax.all_gather(x, ("replica", "shard"), tiled=True).sum(), None)
        total, _ = lax.scan(gathered, jnp.float32(0), None, length=3)
        return *lax.psum((total, total), "shard"), lax.psum(total, "tensor")

    f = jax.shard_map(local, mesh=mesh, in_specs=P(("replica", "shard")), out_specs=P(), check_vma=False)
    inside = next(e for e in jax.make_jaxpr(f)(shard).jaxpr.eqns if e.primitive.name == "shard_map").params["jaxpr"]
    work = traced_work(inside, mesh.shape)
    found = Counter({(block.times, tuple(m)): 1 for block in work.blocks for m in block.messages})
    assert found == {
        (3, ("all-gather", ("replica", "shard"), 2**21 * 7 // 8, 1, False)): 1,
        (1, ("all-reduce", ("shard",), 2 * 2 * 4 * 3 // 4, 1, True)): 1,
    }
