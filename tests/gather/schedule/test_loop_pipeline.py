"""Loops that gather the next layer beside this one have the values and gradients of the loops they came from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.jaxpr import inner_jaxprs, scan_arity, subprogram
from jzero.sharding.collectives import GradReduceConfig
from tests.gather.schedule.test_limits import on_eight_devices, on_one_device
from tests.gather.test_gather import ROWS, D, N, collectives, normal

L = 3
PIPELINED = GradReduceConfig(pipelined=True)
X = normal(9, ROWS, D)
STACK = {"a": normal(0, L, D, 40), "b": normal(1, L, 40, D), "bias": normal(2, L, 3), "shared": normal(3, D, D)}


def blocks(p, x):
    """Rematerialised, from the last layer to the first, with a small leaf, constants, and results of each layer."""
    per_layer = {"w": {k: p[k] for k in ("a", "b", "bias")}, "i": jnp.arange(L, dtype=jnp.int32), "scale": x[0, :L]}

    @jax.checkpoint
    def block(state, layer):
        w, (h, n) = layer["w"], state
        new = h + jnp.tanh(h @ w["a"] * layer["scale"]) @ w["b"] + w["bias"].sum() + x @ p["shared"]
        return (new, n + layer["i"]), {"mean": new.mean(), "n": n}

    (x, n), each = jax.lax.scan(block, (x, jnp.int32(0)), per_layer, reverse=True)
    return (x**2).mean() + (each["mean"] * jnp.arange(1.0, L + 1)).sum() * n.astype(x.dtype), {"n": each["n"]}


def saving(p, x):
    """Without remat: activations are kept, and random keys and a mask come in; the state starts without a gradient."""
    mask = x > 0

    def layer(state, xs):
        w, key = xs
        h, decay = state
        kept = jax.random.bernoulli(key, 0.7, h.shape)
        return (jnp.where(kept & mask, jnp.tanh(h @ w["a"]) @ w["b"], h * 0.5) + decay, decay * 0.9), None

    keys = jax.random.split(jax.random.key(0), L)
    (x, decay), _ = jax.lax.scan(layer, (x, jnp.ones(())), ({"a": p["a"], "b": p["b"]}, keys))
    return (x**2).mean() + decay, {}


def groups(p, x):
    """A loop of loops; the outer one gathers too, and its weight is used in the inner one."""

    def layer(x, w):
        return jnp.tanh(x @ w), None

    def group(x, ws):
        inner, outer = ws
        x = jax.lax.scan(jax.checkpoint(lambda x, w: (layer(x, w)[0] @ outer, None)), x, inner)[0]
        return layer(x, outer)

    return (jax.lax.scan(group, x, (p["inner"], p["outer"]))[0] ** 2).mean(), {}


def twice(p, x):
    """The same stack in two loops, once behind a stopped gradient, cast to bf16 and as it is."""
    stopped = jax.lax.stop_gradient(p["a"])
    low = jax.lax.scan(lambda x, w: (x @ w.astype(jnp.bfloat16).astype(x.dtype), None), x, stopped)[0]

    def layer(x, w):
        return jnp.tanh(x @ w) + w.astype(jnp.bfloat16).astype(jnp.float32).mean(), None

    return (jax.lax.scan(layer, low, p["a"])[0] ** 2).mean(), {}


SQUARE = {"a": normal(5, L, D, D)}
GROUPS = {"inner": normal(6, 2, L, D, D), "outer": normal(7, 2, D, D)}
CASES = {
    "blocks": (blocks, STACK, {}),
    "frozen first matrix": (blocks, STACK, {"trained": lambda name: name != "a"}),
    "saving": (saving, {k: STACK[k] for k in "ab"}, {}),
    "gathered in advance": (saving, {k: STACK[k] for k in "ab"}, {"in_advance": True}),
    "groups": (groups, GROUPS, {}),
    "twice": (twice, SQUARE, {}),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_one_device(name):
    fn, params, options = CASES[name]
    value, grads, more, _ = on_eight_devices(fn, params, X, None, grad_reduce=PIPELINED, **options)
    want, want_grads, want_more = on_one_device(fn, params, X, options.get("trained", lambda name: True))
    np.testing.assert_allclose(value, want, rtol=2e-6)
    jax.tree.map(np.testing.assert_array_equal, more, want_more)
    for got, wanted in zip(grads, want_grads, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())


@pytest.fixture(scope="module")
def traced():
    """The jaxpr of value and gradients of two stacked matrices, of different sizes."""
    fn, params, _ = CASES["saving"]
    return on_eight_devices(fn, params, X, None, grad_reduce=PIPELINED)[3]()


def test_a_pass_gathers_one_layer_more_than_there_are_and_only_the_first_matrix_waits(traced):
    a, b = (D // N, 40), (40 // N, D)
    assert collectives(traced, "all_gather") == {a: 2 * (L + 1), b: 2 * (L + 1)}
    scatters = collectives(traced, "reduce_scatter")
    assert scatters == {(D, 40): L + 1, (40, D): L}


def test_no_iteration_reads_what_it_gathers_or_keeps_it(traced):
    found = [loop for loop in scans(traced) if collectives(loop.params["jaxpr"], "all_gather")]
    assert len(found) == 2
    for loop in found:
        n_carry = scan_arity(loop)[1]
        body = subprogram(loop.params["jaxpr"]).jaxpr
        gathered = {v for eqn in body.eqns if eqn.primitive.name == "all_gather" for v in eqn.outvars}
        waits = [eqn for eqn in body.eqns if eqn.primitive.name == "optimization_barrier"]
        for eqn in waits:
            gathered |= {out for v, out in zip(eqn.invars, eqn.outvars, strict=True) if v in gathered}
        readers = [eqn for eqn in body.eqns if eqn not in waits and not gathered.isdisjoint(read(eqn))]
        assert not readers
        assert len(gathered & set(body.outvars[:n_carry])) == 2
        assert not {(L, D, 40), (L, 40, D)} & {tuple(v.aval.shape) for v in loop.outvars[n_carry:]}


def scans(program):
    """Every `scan` of a jaxpr."""
    for eqn in subprogram(program).jaxpr.eqns:
        if eqn.primitive.name == "scan":
            yield eqn
        for inner in inner_jaxprs(eqn):
            yield from scans(inner)


def read(eqn):
    return {v for v in eqn.invars if not hasattr(v, "val")}
