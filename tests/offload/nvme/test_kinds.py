"""Which parameters one compiled update serves, and what it computes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jzero.offload.nvme.kinds import compile_update, sort_kinds
from tests.offload.host.test_update import PARAMS, planned


def sorted_kinds(optimizer):
    state = jax.eval_shape(optimizer.init, PARAMS)
    operands = [*PARAMS.values(), *jax.tree.leaves(state), *PARAMS.values(), jax.ShapeDtypeStruct((), jnp.float32)]
    return *sort_kinds(planned(optimizer), operands, [(jnp.bfloat16,)] * len(PARAMS)), operands


def test_shapes_do_not_tell_kinds_apart_and_constants_do():
    kinds, of, _ = sorted_kinds(optax.adamw(1e-3))
    assert (len(kinds), of) == (1, [0, 0])
    assert kinds[0].computes == jnp.bfloat16
    kinds, of, _ = sorted_kinds(optax.adamw(1e-3, weight_decay=0.1, mask={"head": True, "wte": False}))
    assert (len(kinds), of) == (2, [0, 1])


@pytest.mark.parametrize("divisor", [None, np.float32(3)])
def test_a_stretch_is_updated_as_a_parameter_would_be(divisor):
    optimizer = optax.adamw(1e-2, weight_decay=0.1)
    (kind,), _, operands = sorted_kinds(optimizer)
    update = compile_update(kind, 10, np.float32, [operands[i] for i in kind.scalars], divides=divisor is not None)
    random = np.random.default_rng(0)
    grad, param, mean = (random.standard_normal(10, np.float32) for _ in range(3))
    square = np.abs(mean)
    (new_mean, new_square, new), computes = update(grad, [mean, square, param], [np.int32(4)], divisor)

    state = optimizer.init(param)
    state = (state[0]._replace(count=jnp.int32(4), mu=jnp.asarray(mean), nu=jnp.asarray(square)), *state[1:])
    with jax.numpy_dtype_promotion("standard"):
        updates, state = optimizer.update(jnp.asarray(grad / (divisor or np.float32(1))), state, param)
    expected = optax.apply_updates(param, updates)
    for got, want in ((new, expected), (new_mean, state[0].mu), (new_square, state[0].nu)):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_array_equal(computes, new.astype(jnp.bfloat16))
