"""Gather at use: functions of sharded parameters have the values and gradients of the functions they came from."""

import functools
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jzero.gather import gather_at_use, scanned_dims
from jzero.jaxpr import inner_jaxprs, subprogram
from jzero.sharding.collectives import GradReduceConfig
from jzero.sharding.mesh import DATA_AXES, make_mesh, shard_over_data
from jzero.sharding.placement import place_all
from jzero.sharding.trees import is_placement, pad, unpad

N = 8
ROWS, D = 16, 24


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape) / max(shape[0], 1) ** 0.5


def mlp(p, x):
    return (jnp.tanh(x @ p["a"] + p["bias"]) @ p["b"]).mean()


def scanned(p, x, body_transform=lambda f: f):
    def layer(x, w):
        return x + jnp.tanh(x @ w["a"]) @ w["b"].T, None

    return (jax.lax.scan(body_transform(layer), x, p["layers"])[0] ** 2).mean()


def scan_of_scan(p, x):
    def group(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0], None

    return (jax.lax.scan(jax.checkpoint(group), x, p)[0] ** 2).mean()


def scan_that_returns_its_parameters(p, x):
    x, layers = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), w), x, p)
    return (x**2).mean() + 0.0 * layers[0, 0, 0]


def recurrent(p, x):
    def step(h, x_t):
        return jnp.tanh(x_t @ p["in"] + h @ p["hidden"]), None

    xs = jnp.stack([x, 2 * x, 3 * x])
    return (jax.lax.scan(step, jnp.zeros((x.shape[0], D)), xs)[0] ** 2).mean()


def tied(p, x):
    tokens = (jnp.abs(x[:, :4]) * 10).astype(jnp.int32)
    return jax.nn.logsumexp(p[tokens] @ p.T, axis=-1).mean()


def branches(p, x):
    return jax.lax.cond(x.sum() > 0, lambda: (x @ p["a"]).sum(), lambda: (x @ p["b"]).mean()) ** 2


def counted_loop(p, x):
    return (jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ p), x) ** 2).mean()


def rearranged(p, x):
    w = p["a"].reshape(D, 2, D).transpose(1, 0, 2)  # [2, D, D]
    return sum((x @ w[i].astype(jnp.float32)).mean() * (i + 1) for i in range(2))


def blocks_alike_but_for_a_constant(p, x):
    def block(w, x, offset):
        return jnp.tanh(x @ w + offset * jnp.arange(D, dtype=x.dtype))

    for w, offset in zip((p["a"], p["b"], p["a"]), (0.0, 1.0, 0.0), strict=True):
        x = jax.checkpoint(functools.partial(block, offset=offset))(w, x)
    return (x**2).mean()


def convolution(p, x):
    image = x.reshape(-1, 4, 6, 1)
    y = jax.lax.conv_general_dilated(image, p, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return (y**2).mean()


def normalised_weight(p, x):
    return ((x @ (p["g"] * p["v"] / jnp.linalg.norm(p["v"], axis=0))) ** 2).mean()


def gradient_penalty(p, x):
    return (jax.vmap(jax.grad(lambda x: jnp.tanh(x @ p).sum()))(x) ** 2).mean()


def stacked_models(p, x):
    return (jax.vmap(lambda w: jnp.tanh(x @ w))(p) ** 2).mean()


def with_custom_rule(p, x):
    @jax.custom_vjp
    def product(x, w):
        return x @ w

    product.defvjp(lambda x, w: (x @ w, (x, w)), lambda r, g: (g @ r[1].T, r[0].T @ g))
    return (product(x, p) ** 2).mean()


def parameter_is_the_output(p, x):
    return p["w"].sum() + (x @ p["a"]).mean()


DOTS = functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
LAYERS = {"layers": {"a": normal(0, 3, D, 2 * D), "b": normal(1, 3, D, 2 * D)}}
CASES = {
    "mlp": (mlp, {"a": normal(0, D, 40), "bias": normal(1, 40), "b": normal(2, 40, 7)}),
    "mlp under jit": (jax.jit(mlp), {"a": normal(0, D, 40), "bias": normal(1, 40), "b": normal(2, 40, 7)}),
    "mlp, remat": (jax.checkpoint(mlp), {"a": normal(0, D, 40), "bias": normal(1, 40), "b": normal(2, 40, 7)}),
    "sizes that do not divide": (mlp, {"a": normal(0, D, 1001), "bias": normal(1, 1001), "b": normal(2, 1001, 17)}),
    "scan": (scanned, LAYERS),
    "scan, remat": (functools.partial(scanned, body_transform=jax.checkpoint), LAYERS),
    "scan, remat that saves products": (functools.partial(scanned, body_transform=DOTS), LAYERS),
    "scan of scan": (scan_of_scan, normal(0, 2, 3, D, D)),
    "scan that returns its parameters": (scan_that_returns_its_parameters, normal(0, 3, D, D)),
    "recurrent": (recurrent, {"in": normal(0, D, D), "hidden": normal(1, D, D)}),
    "tied": (tied, normal(0, 64, 10)),
    "cond": (branches, {"a": normal(0, D, D), "b": normal(1, D, D)}),
    "fori_loop": (counted_loop, normal(0, D, D)),
    "rearranged": (rearranged, {"a": normal(0, D, 2 * D)}),
    "blocks alike but for a constant": (blocks_alike_but_for_a_constant, {"a": normal(0, D, D), "b": normal(1, D, D)}),
    "convolution": (convolution, normal(0, 3, 3, 1, 16)),
    "weight normalisation": (normalised_weight, {"g": normal(0, D), "v": normal(1, D, D)}),
    "gradient penalty": (gradient_penalty, normal(0, D, D)),
    "vmap over parameters": (stacked_models, normal(0, 4, D, D)),
    "custom_vjp": (with_custom_rule, normal(0, D, D)),
    "parameter is the output": (parameter_is_the_output, {"w": normal(0, 32, 3), "a": normal(1, D, D)}),
    "unused parameter": (lambda p, x: (x @ p["a"]).mean(), {"a": normal(0, D, D), "unused": normal(1, D, D)}),
    "integer parameter": (
        lambda p, x: (x @ p["a"])[:, p["order"] % 3].mean(),
        {"a": normal(0, D, D), "order": jnp.arange(16)},
    ),
    "empty parameter": (
        lambda p, x: (x @ p["a"]).mean() + p["e"].sum(),
        {"a": normal(0, D, D), "e": jnp.zeros((0, 8))},
    ),
}


def sharded_loss_and_grads(fn, params, x):
    """Runs `fn` on 8 devices with every leaf divided; returns its mean, its gradients, and the jitted program."""
    mesh = make_mesh(jax.devices()[:N])
    local_x = jax.ShapeDtypeStruct((ROWS // N, *x.shape[1:]), x.dtype)
    placements = place_all(params, N, unshardable_dims=scanned_dims(fn, params, local_x))
    specs = jax.tree.map(lambda p: p.spec, placements, is_leaf=is_placement)
    smooth = jax.tree.map(lambda w: jnp.issubdtype(w.dtype, jnp.inexact), params)
    loss = gather_at_use(fn, placements, GradReduceConfig(), casts=jax.tree.map(lambda _: (), params), trainable=smooth)

    def local(params, x):
        value, grads = jax.value_and_grad(loss, allow_int=True)(params, x)
        whole = lambda p, g, s: (
            (jax.lax.psum(g, DATA_AXES) if p.dim is None else g) / N if s else jnp.zeros(p.shard_shape)
        )
        return jax.lax.pmean(value, DATA_AXES), jax.tree.map(whole, placements, grads, smooth, is_leaf=is_placement)

    program = jax.jit(shard_over_data(local, mesh, (specs, P(DATA_AXES)), (P(), specs)))
    value, grads = program(pad(params, placements), x)
    return value, unpad(grads, placements), program, placements


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_one_device(name):
    fn, params = CASES[name]
    x = normal(9, ROWS, D) + 0.1
    smooth = jax.tree.map(lambda w: jnp.issubdtype(w.dtype, jnp.inexact), params)

    def reference(params):
        # Each device takes the loss of its own rows; the mean of those is what is differentiated.
        return jnp.stack([fn(params, rows) for rows in x.reshape(N, ROWS // N, D)]).mean()

    expected, expected_grads = jax.jit(jax.value_and_grad(reference, allow_int=True))(params)
    value, grads, _, _ = sharded_loss_and_grads(fn, params, x)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for s, got, want in zip(*map(jax.tree.leaves, (smooth, grads, expected_grads)), strict=True):
        if s and want.size:
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * max(float(jnp.abs(want).max()), 1e-3))


def collectives(jaxpr, kind, times=1, in_loop=False):
    """Counts a collective over a jaxpr: shape of its operand -> (executions, whether in a `while`)."""
    counts = Counter()
    for eqn in subprogram(jaxpr).jaxpr.eqns:
        if eqn.primitive.name == kind:
            counts[tuple(eqn.invars[0].aval.shape)] += times
        trips = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        for inner in inner_jaxprs(eqn):
            counts += collectives(inner, kind, times * trips)
    return counts


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("name", ["mlp", "scan"])
def test_each_leaf_is_gathered_twice_and_scattered_once(name, remat):
    fn, params = CASES[f"{name}, remat" if remat else name]
    *_, program, placements = sharded_loss_and_grads(fn, params, normal(9, ROWS, D))
    jaxpr = jax.make_jaxpr(program)(pad(params, placements), normal(9, ROWS, D))
    n_uses = sum(
        p.shape[0] if name == "scan" else 1
        for p in jax.tree.leaves(placements, is_leaf=is_placement)
        if p.dim is not None
    )
    gathers = sum(collectives(jaxpr, "all_gather").values())
    # A bias is added, so its cotangent needs no second gather; as dead code it goes before the program runs.
    assert gathers <= 2 * n_uses
    assert sum(collectives(jaxpr, "reduce_scatter").values()) == n_uses


def test_a_loop_constant_is_gathered_before_the_loop():
    fn, params = CASES["recurrent"]
    *_, program, placements = sharded_loss_and_grads(fn, params, normal(9, ROWS, D))
    jaxpr = jax.make_jaxpr(program)(pad(params, placements), normal(9, ROWS, D))
    # Though the loop runs 3 times: once per pass, and no gradient flows to the data through the input's matrix.
    assert sum(collectives(jaxpr, "all_gather").values()) == 3
    assert sum(collectives(jaxpr, "reduce_scatter").values()) == 2


def test_casts_travel_in_front_of_the_gather():
    fn = lambda p, x: (x.astype(jnp.bfloat16) @ p.astype(jnp.bfloat16)).astype(jnp.float32).mean()
    params = normal(0, D, D)
    *_, program, placements = sharded_loss_and_grads(fn, params, normal(9, ROWS, D))
    text = program.lower(pad(params, placements), normal(9, ROWS, D)).as_text()
    gathers = [line for line in text.splitlines() if "all_gather" in line]
    assert gathers
    assert all("bf16" in line for line in gathers)


def test_scanned_dimensions_are_found():
    found = scanned_dims(scan_of_scan, normal(0, 2, 3, D, D), jnp.ones((2, D)))
    assert found == {0: {0, 1}}
    transposed = lambda p, x: jax.lax.scan(lambda x, w: (x @ w, None), x, jnp.moveaxis(p, 1, 0))[0]
    assert scanned_dims(transposed, normal(0, D, 3, D), jnp.ones((2, D))) == {0: {1}}
