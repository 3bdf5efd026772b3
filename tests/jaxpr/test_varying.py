"""What differs between devices is followed through loops, branches and rules, and ends at a sum over all of them."""

import jax
import jax.numpy as jnp
import pytest

from jzero.jaxpr.varying import may_differ

AXES = ("replica", "shard")


@jax.custom_vjp
def with_rule(x):
    return x * 2


with_rule.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 2,))

CASES = {
    "sum over one axis": (lambda c, x: jax.lax.psum(x.sum(), "shard"), True),
    "sum over both": (lambda c, x: jax.lax.psum(x.sum(), AXES), False),
    "mean over both": (lambda c, x: c + jax.lax.pmean(x.sum(), AXES), False),
    "maximum": (lambda c, x: jax.lax.pmax(x.sum(), AXES), False),
    "gathered": (lambda c, x: jax.lax.all_gather(x, AXES).sum(), False),
    "index": (lambda c, x: jax.lax.axis_index(AXES), True),
    "constant": (lambda c, x: c + jnp.arange(3.0).sum(), False),
    "shape": (lambda c, x: c + x.shape[0], False),
    "rule": (lambda c, x: with_rule(x).sum(), True),
    "rule, agreed": (lambda c, x: jax.jit(jax.checkpoint(with_rule))(jax.lax.psum(x, AXES)).sum(), False),
    "carried round": (lambda c, x: jax.lax.scan(lambda s, y: ((s[1], s[1] + y), None), (c, c), x)[0][0], True),
    "not carried": (lambda c, x: jax.lax.scan(lambda s, y: ((s[0], s[1] + y), None), (c, c), x)[0][0], False),
    "scanned": (lambda c, x: jax.lax.scan(lambda s, y: (s, y), c, x)[1].sum(), True),
    "length differs": (lambda c, x: jax.lax.while_loop(lambda s: s < x.sum(), lambda s: s + 1, c), True),
    "length agreed": (lambda c, x: jax.lax.fori_loop(0, 3, lambda i, s: s + 1, c), False),
    "branch differs": (lambda c, x: jax.lax.cond(x.sum() > 0, lambda: c, lambda: c + 1), True),
    "branch agreed": (lambda c, x: jax.lax.cond(c > 0, lambda: c, lambda: c + 1), False),
    "in a branch": (lambda c, x: jax.lax.cond(c > 0, lambda: c, lambda: x.sum()), True),
}


@pytest.mark.parametrize("name", CASES)
def test_what_may_differ(name):
    f, expected = CASES[name]
    program = jax.make_jaxpr(f, axis_env=[(axis, 2) for axis in AXES])(1.0, jnp.ones(3))
    assert may_differ(program, [False, True], AXES) == [expected]
