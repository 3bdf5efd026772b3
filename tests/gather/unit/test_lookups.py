"""Lookups in a parameter: value and gradient are JAX's own, and the gradient's zeros wait for what is added to them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal, primitives

from jzero.gather.unit.products import apply_primitive
from jzero.jaxpr import subprogram, trace

ROWS = np.array([[3, 0, 3], [6, 6, 1]])
FAR = np.array([[3, -1, 9], [7, -8, 1]])
"""Of 7 rows: also counted from the end, and beyond either end."""

LOOKUPS = {
    "rows": lambda w: w[ROWS],
    "columns": lambda w: w[:, ROWS % 5],
    "elements": lambda w: w[ROWS, ROWS % 5],
    "rows of a slice": lambda w: w[ROWS, 1:4],
    "take": lambda w: jnp.take(w, FAR, axis=0),
    "take, filled": lambda w: jnp.take(w, FAR, axis=0, mode="fill", fill_value=2.0),
    "take, clipped": lambda w: jnp.take(w, FAR, axis=0, mode="clip"),
    "take, wrapped": lambda w: jnp.take(w, FAR, axis=1, mode="wrap"),
    "in bounds by promise": lambda w: w.at[ROWS].get(mode="promise_in_bounds"),
    "sorted and unique": lambda w: w.at[jnp.array([0, 2, 5])].get(indices_are_sorted=True, unique_indices=True),
    "along an axis": lambda w: jnp.take_along_axis(w, ROWS[:, :1].repeat(7, 0)[:7] % 5, axis=1),
    "a batch of lookups": lambda w: jax.vmap(lambda row, i: row[i])(w, jnp.arange(14).reshape(7, 2) % 5),
    "a batch of slices": lambda w: jax.vmap(lambda i: jax.lax.dynamic_slice(w, (i, 1), (2, 3)))(jnp.array([0, 5, 6])),
}


def table(dtype=jnp.float32):
    return jax.random.normal(jax.random.key(0), (7, 5)).astype(dtype)


def flattened(fn):
    """Every equation of `fn` by `apply_primitive`, calls that only give a name opened."""

    def run(w):
        return _run(*trace(fn, w)[0], [w])[0]

    def _run(jaxpr, consts, values):
        env = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))
        for eqn in jaxpr.eqns:
            operands = [v.val if isinstance(v, Literal) else env[v] for v in eqn.invars]
            if eqn.primitive is primitives.jit_p:
                outs = _run(*subprogram(eqn.params["jaxpr"]), operands)
            else:
                outs = apply_primitive(eqn, operands)
            env.update(zip(eqn.outvars, outs, strict=True))
        return [env[v] for v in jaxpr.outvars]

    return run


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.complex64])
@pytest.mark.parametrize("name", LOOKUPS)
def test_value_and_gradient_are_those_of_jax(name, dtype):
    fn, w = LOOKUPS[name], table(dtype)
    assert " gather[" in str(trace(fn, w)[0].jaxpr)
    wanted, pull_wanted = jax.vjp(fn, w)
    value, pull = jax.vjp(flattened(fn), w)
    cotangent = jax.random.normal(jax.random.key(1), value.shape).astype(dtype)
    for got, want in ((value, wanted), (pull(cotangent)[0], pull_wanted(cotangent)[0])):
        assert got.dtype == want.dtype == dtype
        np.testing.assert_array_equal(np.asarray(got, np.complex64), np.asarray(want, np.complex64))


def test_a_table_of_integers_is_looked_up_as_it_is():
    w = jnp.arange(35).reshape(7, 5)
    np.testing.assert_array_equal(flattened(LOOKUPS["rows"])(w), w[ROWS])


def test_the_zeros_wait_for_the_gradient():
    w = table()
    eqns = jax.make_jaxpr(lambda grad: jax.vjp(flattened(LOOKUPS["rows"]), w)[1](grad))(w[ROWS]).jaxpr.eqns
    made = {v: eqn for eqn in eqns for v in eqn.outvars}
    (added,) = (eqn for eqn in eqns if eqn.primitive.name == "scatter-add")
    # Zeros made of nothing could be there from the start of the step; these are made of what a barrier lets through.
    zeros = made[added.invars[0]]
    assert zeros.primitive.name == "broadcast_in_dim"
    assert made[zeros.invars[0]].primitive.name == "optimization_barrier"
    assert made[zeros.invars[0]] is made[added.invars[2]]
