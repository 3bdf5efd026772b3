"""Gathers ahead of their use and parameters that are kept change when things travel, and no value or gradient.

Every function runs on 8 devices with all leaves divided, under limits from "each use for itself" to "everything at
once", beside itself on one device.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jzero.gather import Limits, gather_at_use, scanned_dims
from jzero.jaxpr import trace
from jzero.sharding.collectives import GradReduceConfig, gather_leaf
from jzero.sharding.mesh import DATA_AXES, make_mesh, shard_over_data
from jzero.sharding.placement import place_all
from jzero.sharding.trees import is_placement, pad, unpad
from tests.gather.test_gather import CASES, ROWS, D, N, collectives, normal

BLOCK = 2 * D * D
WIRE = GradReduceConfig()
NOTHING, EVERYTHING = Limits(0, 0, 0), Limits(10**9, 10**9, 10**9)
LIMITS = {
    "nothing": NOTHING,
    "one block ahead": Limits(BLOCK, 2 * BLOCK, 0),
    "everything": EVERYTHING,
}
FOUR = {f"block{i}": {"a": normal(2 * i, D, D), "b": normal(2 * i + 1, D, D)} for i in range(4)}
LAYERS = {"layers": {"a": normal(20, 3, D, D), "b": normal(21, 3, D, D)}}


def block(p, x):
    return x + jnp.tanh(x @ p["a"]) @ p["b"]


remat = jax.checkpoint(block)
saving = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)


def stack(block):
    """Four blocks, one after the other."""

    def loss(p, x):
        for i in range(4):
            x = block(p[f"block{i}"], x)
        return (x**2).mean()

    return loss


def tied(p, x):
    tokens = (jnp.abs(x[:, :6]) * 10).astype(jnp.int32) % 64
    x = jnp.tanh(p["table"][tokens].mean(axis=1) @ p["w"])
    x = jax.nn.softmax(x @ p["table"].T) @ p["table"]
    x = jax.checkpoint(lambda table, x: jnp.tanh(x @ table.T) @ table)(p["table"], x)
    return jax.nn.logsumexp(x @ p["table"].T, axis=-1).mean()


def twice_in_a_row(p, x):
    return (jnp.tanh(x @ p.T) @ p).mean()


def the_same_blocks_three_times(p, x):
    for _ in range(3):
        x = saving(p["block1"], remat(p["block0"], x)) @ p["block0"]["a"]
    return (x**2).mean()


def towers(p, x):
    left, right = block(p["block0"], x), block(p["block1"], x)
    return (remat(p["block2"], left) * remat(p["block3"], right)).mean()


def stopped(p, x):
    x = jax.lax.stop_gradient(remat(p["block1"], remat(p["block0"], x)))
    x = remat(jax.lax.stop_gradient(p["block2"]), x)
    return (remat(p["block3"], x) ** 2).mean()


def a_unit_without_a_gradient(p, x):
    x = remat(p["block0"], x)
    zeros = (remat(p["block1"], x) * 0.0).sum() + jnp.round(x @ p["block2"]["a"]).mean()
    return zeros + (remat(p["block3"], x) ** 2).mean()


def integers_between(p, x):
    x = remat(p["block0"], x)
    x = jax.checkpoint(lambda order, x: x[:, order % D])(p["order"], x)
    best = jnp.argmax(x[:, :D] @ p["block1"]["a"], axis=-1)
    positive = (p["block2"]["a"] > 0).sum().astype(jnp.float32)
    return (p["block3"]["b"][best] * x[:, :D]).mean() * positive


def loops_between(p, x):
    x = block(p["block0"], x)
    x = jax.lax.scan(lambda x, w: (jnp.tanh(block(w, x)) @ p["block3"]["a"], None), x, p["layers"])[0]
    x = remat(p["block1"], x)
    x = jax.lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(block(w, x) @ p["block0"]["a"]), None)), x, p["layers"])[0]
    return (block(p["block2"], x) @ p["block0"]["b"]).mean()


def complex_numbers(p, x):
    x = jax.checkpoint(lambda w, x: jnp.tanh(x @ w) @ w.T)(p["c"], x.astype(jnp.complex64))
    return (jnp.abs(x @ p["d"]) ** 2).mean()


def random_keys(p, x):
    dropped = jax.checkpoint(lambda w, key, x: jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x @ w, 0.0))
    key = jax.random.key(p["seed"][0])
    return dropped(p["b"], jax.random.split(key)[0], dropped(p["a"], key, x)).mean()


def eight_bit_weights(p, x):
    by = lambda x: jax.lax.dot_general(x, p["q"], (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    return by(by(x) @ p["a"]).mean()


def branch_between(p, x):
    x = remat(p["block0"], x)
    x = jax.lax.cond(x.sum() > 0, lambda x: block(p["block1"], x), lambda x: block(p["block2"], x), x)
    return (remat(p["block3"], x) ** 2).mean()


COMPLEX = {name: normal(i, D, D).astype(jnp.complex64) * (1 + 0.5j) for i, name in enumerate("cd")}
HARD = {
    "tied": (tied, {"table": normal(0, 64, 16), "w": normal(1, 16, 16)}),
    "twice in a row": (twice_in_a_row, normal(0, D, D)),
    "the same blocks three times": (the_same_blocks_three_times, FOUR),
    "towers": (towers, FOUR),
    "stopped": (stopped, FOUR),
    "a unit without a gradient": (a_unit_without_a_gradient, FOUR),
    "integers between": (integers_between, {**FOUR, "order": jnp.arange(32)}),
    "loops between": (loops_between, {**FOUR, **LAYERS}),
    "complex numbers": (complex_numbers, COMPLEX),
    "random keys": (random_keys, {"seed": jnp.arange(8, dtype=jnp.uint32), "a": normal(0, D, D), "b": normal(1, D, D)}),
    "8-bit weights": (eight_bit_weights, {"q": (normal(0, D, D) * 10).astype(jnp.int8), "a": normal(1, D, D)}),
    "branch between": (branch_between, FOUR),
}
ELSEWHERE = [
    "mlp, remat",
    "sizes that do not divide",
    "scan that returns its parameters",
    "recurrent",
    "tied",
    "rearranged",
    "weight normalisation",
    "gradient penalty",
    "custom_vjp",
    "parameter is the output",
    "unused parameter",
]


def on_eight_devices(
    fn, params, x, limits, *, trained=lambda name: True, around=lambda loss: loss, grad_reduce=WIRE, in_advance=False
):
    """Value, gradients of the trained leaves and further results of `fn`, which gives a loss and a dict.

    Only the trained leaves are differentiated, as in a training step. The last result makes the jaxpr of it all,
    without dead code.
    """
    mesh = make_mesh(jax.devices()[:N])
    local_x = jax.ShapeDtypeStruct((ROWS // N, *x.shape[1:]), x.dtype)
    placements = place_all(params, N, unshardable_dims=scanned_dims(fn, params, local_x))
    specs = jax.tree.map(lambda p: p.spec, placements, is_leaf=is_placement)
    mask = trainable(params, trained)
    none = jax.tree.map(lambda _: (), params)

    def local(params, x):
        wholes = jax.tree.map(gather_leaf, params, placements) if in_advance else None
        sharded_loss = gather_at_use(
            fn, placements, grad_reduce, casts=none, trainable=mask, limits=limits, wholes=wholes
        )
        loss = around(sharded_loss)

        def of_trained(trained):
            return loss(join(trained, params, mask), x)

        (value, more), grads = jax.value_and_grad(of_trained, has_aux=True)(only(params, mask))
        grads = jax.tree.map(
            lambda p, g: (jax.lax.psum(g, DATA_AXES) if p.dim is None else g) / N,
            only(placements, mask),
            grads,
            is_leaf=is_placement,
        )
        return jax.lax.pmean(value, DATA_AXES), grads, jax.tree.map(lambda m: m[None], more)

    out_specs = (P(), only(specs, mask), P(DATA_AXES))
    sharded, stored = shard_over_data(local, mesh, (specs, P(DATA_AXES)), out_specs), pad(params, placements)
    value, grads, more = jax.jit(sharded)(stored, x)
    return value, unpad(grads, only(placements, mask)), more, lambda: trace(sharded, stored, x)[0]


def on_one_device(fn, params, x, trained=lambda name: True):
    mask = trainable(params, trained)

    def loss(trained, params):
        rows = x.reshape(N, ROWS // N, *x.shape[1:])
        values, more = jax.lax.map(lambda rows: fn(join(trained, params, mask), rows), rows)
        return values.mean(), more

    (value, more), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(only(params, mask), params)
    return value, grads, more


def trainable(params, trained):
    names = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
    return jax.tree_util.tree_map_with_path(
        lambda path, w: bool(jnp.issubdtype(w.dtype, jnp.inexact)) and trained(names(path)), params
    )


def only(tree, mask):
    """The trained leaves, in a list."""
    flat, treedef = jax.tree.flatten(mask)
    return [leaf for leaf, wanted in zip(treedef.flatten_up_to(tree), flat, strict=True) if wanted]


def join(trained, params, mask):
    leaves, treedef = jax.tree.flatten(params)
    given = iter(trained)
    wanted = jax.tree.leaves(mask)
    return treedef.unflatten([next(given) if w else leaf for leaf, w in zip(leaves, wanted, strict=True)])


def with_nothing_more(fn):
    return lambda p, x: (fn(p, x), {})


def check(fn, params, limits, *, rtol=1e-4, **options):
    """Compares with one device; gives a function to count gathers and scatters."""
    x = normal(9, ROWS, D) + 0.1
    value, grads, more, program = on_eight_devices(fn, params, x, limits, **options)
    options.pop("around", None)
    expected, expected_grads, expected_more = on_one_device(fn, params, x, **options)
    np.testing.assert_allclose(value, expected, rtol=rtol)
    for got, want in zip(grads, expected_grads, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol / 10 * max(float(jnp.abs(want).max()), 1e-3))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=rtol, atol=1e-6), more, expected_more)
    return lambda: counted(program())


def counted(program):
    return tuple(collectives(program, kind).total() for kind in ("all_gather", "reduce_scatter"))


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", HARD)
def test_values_and_gradients_are_those_of_one_device(name, limits):
    fn, params = HARD[name]
    check(with_nothing_more(fn), params, LIMITS[limits])


@pytest.mark.parametrize("name", ELSEWHERE)
def test_functions_that_work_without_limits_work_with_them(name):
    fn, params = CASES[name]
    check(with_nothing_more(fn), params, EVERYTHING)


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("block", [block, remat, saving], ids=["plain", "remat", "saving"])
def test_a_leaf_is_gathered_once_if_it_may_be_kept_and_else_twice(block, limits):
    gathers = 8 if limits == "everything" else 16
    assert check(with_nothing_more(stack(block)), FOUR, LIMITS[limits])() == (gathers, 8)


def test_without_room_the_last_unit_still_keeps_what_it_needs_itself():
    assert check(with_nothing_more(stack(remat)), FOUR, Limits(10**9, 0, 10**9))() == (14, 8)


@pytest.mark.parametrize("limits", [NOTHING, EVERYTHING])
def test_every_use_of_a_tied_parameter_scatters_for_itself(limits):
    fn, params = HARD["twice in a row"]
    assert check(with_nothing_more(fn), params, limits)() == (4 if limits is NOTHING else 1, 2)


@pytest.mark.parametrize("limits", ["one block ahead", "everything"])
def test_results_beside_the_loss_may_come_from_units_that_have_no_backward_pass(limits):
    def fn(p, x):
        on_the_path = remat(p["block1"], x @ p["block0"]["a"])
        metric = remat(p["block2"], on_the_path)
        last = remat(p["block3"], jax.lax.stop_gradient(metric))
        more = {
            "mean": metric.mean(),
            "choice": jnp.argmax(metric, axis=-1),
            "weight": p["block0"]["b"].T,
            "used": p["block3"]["a"].reshape(-1),
        }
        return (on_the_path**2).mean() + (last**2).mean(), more

    check(fn, FOUR, LIMITS[limits])


@pytest.mark.parametrize("limits", ["one block ahead", "everything"])
@pytest.mark.parametrize(
    "trained",
    [
        lambda name: not name.startswith("block0"),
        lambda name: name in ("block0.a", "block3.b"),
        lambda name: name == "block2.b",
        lambda name: name.startswith("layers"),
        lambda name: name in ("block3.a", "layers.b"),
    ],
    ids=["all but the first", "ends", "one in the middle", "layers", "in the loop"],
)
def test_frozen_parameters_are_gathered_ahead_and_get_no_gradient(trained, limits):
    fn, params = HARD["loops between"]
    check(with_nothing_more(fn), params, LIMITS[limits], trained=trained)


AROUND = {
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "scan": lambda loss: (
        lambda p, x: jax.tree.map(
            lambda y: y.mean(axis=0), jax.lax.scan(lambda c, x: (c, loss(p, x)), None, jnp.stack([x, x]))[1]
        )
    ),
    "cond": lambda loss: lambda p, x: jax.lax.cond(x.sum() < 1e9, loss, lambda p, x: (jnp.zeros(()), {}), p, x),
}


@pytest.mark.parametrize("around", AROUND)
def test_what_comes_back_survives_transformations_of_the_whole(around):
    check(with_nothing_more(stack(remat)), FOUR, LIMITS["one block ahead"], around=AROUND[around])


@pytest.mark.parametrize("limits", ["one block ahead", "everything"])
def test_accumulation_in_a_loop_around_the_gradient(limits):
    """Half of the rows at a time, in a `scan` of gradients."""
    mesh = make_mesh(jax.devices()[:N])
    fn, params = HARD["tied"]
    x = normal(9, 2 * ROWS, D) + 0.1
    placements = place_all(params, N)
    specs = jax.tree.map(lambda p: p.spec, placements, is_leaf=is_placement)
    all_of = functools.partial(jax.tree.map, is_leaf=is_placement)
    options = {"casts": all_of(lambda _: (), params), "trainable": all_of(lambda _: True, params)}
    loss = gather_at_use(fn, placements, GradReduceConfig(), limits=LIMITS[limits], **options)

    def local(params, x):
        def body(total, rows):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, rows)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(body, zeros, x.reshape(2, -1, D))[0]

    program = jax.jit(shard_over_data(local, mesh, (specs, P(DATA_AXES)), specs))
    expected = jax.grad(lambda p: sum(fn(p, rows) for rows in x.reshape(2 * N, ROWS // N, D)))(params)
    grads = program(pad(params, placements), x)
    jax.tree.map(lambda g, e: np.testing.assert_allclose(g, e, rtol=1e-4, atol=1e-6), grads, expected)
    gathers, scatters = counted(trace(program, pad(params, placements), x)[0])
    assert scatters == 2 * 6
    assert gathers == 2 * 2 or limits != "everything"


@pytest.mark.parametrize("limits", LIMITS)
def test_parameters_that_are_cast_travel_and_are_kept_narrow(limits):
    def fn(p, x):
        p, x = jax.tree.map(lambda x: x.astype(jnp.bfloat16), (p, x))
        return stack(remat)(p, x).astype(jnp.float32), {}

    # Gradients are sums over 8 devices of bf16 numbers, each rounded where XLA fuses as it likes.
    check(fn, FOUR, LIMITS[limits], rtol=5e-2)
    *_, program = on_eight_devices(fn, FOUR, normal(9, ROWS, D), LIMITS[limits])
    gathers = [line for line in str(program().jaxpr).splitlines() if "= all_gather[" in line]
    assert gathers
    assert all("bf16[" in line for line in gathers)
