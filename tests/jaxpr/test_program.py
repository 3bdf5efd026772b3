"""Jaxprs that are applied, cut and evaluated anew hold constants in forms that the traced code never saw."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.jaxpr import bind, equations, evaluate, restrict, trace

TIMES = np.arange(3, dtype=np.float32)


@jax.custom_vjp
def by_rule(x, times, scale):
    return x * times.sum() * scale


def _backward(residuals, grad):
    times, scale = residuals
    last = jnp.argmax(times)  # indexes a constant by what is traced, which an array of NumPy refuses
    return grad * times[last] * scale, jnp.zeros(times.shape), jnp.zeros(scale.shape, scale.dtype)


by_rule.defvjp(lambda x, times, scale: (by_rule(x, times, scale), (times, scale)), _backward)


@jax.custom_jvp
def by_tangent(x, times, scale):
    return x * times.sum() * scale


@by_tangent.defjvp
def _tangent(primals, tangents):
    x, times, scale = primals
    return by_tangent(x, times, scale), tangents[0] * times[jnp.argmax(times)] * scale.astype(x.dtype)


@pytest.mark.parametrize("rule", [by_rule, by_tangent])
def test_a_rule_finds_constants_to_be_arrays(rule):
    program, _ = trace(lambda x: rule(x, jnp.asarray(TIMES), jnp.float32(3)), jnp.float32(2))
    eqn = equations(program)[-1]
    slope = jax.jit(jax.grad(lambda x: bind(eqn, [x, TIMES, np.float32(3)])[0]))(jnp.float32(2))
    assert float(slope) == 6.0


def test_a_program_may_put_out_a_constant():
    program, _ = trace(lambda x, y: (x * 2, 3.0, y), jnp.ones(2), jnp.ones(3))
    smaller, used = restrict(program, [True, True, False])
    assert used == [True, False]
    doubled, constant = evaluate(smaller, [jnp.ones(2)])
    np.testing.assert_array_equal(doubled, 2)
    assert isinstance(constant, jax.Array)
