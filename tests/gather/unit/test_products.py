"""Products with a parameter: the gradients are JAX's own, and need no transposition if it lies as they come out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jzero.gather.unit.products import apply_primitive
from jzero.jaxpr import subprogram, trace

EINSUMS = {
    "dense": ("td,df->tf", (5, 4), (4, 3)),
    "dense over a batch": ("btd,df->btf", (2, 5, 4), (4, 3)),
    "two contracted dimensions": ("bthd,hdf->btf", (2, 5, 3, 4), (3, 4, 6)),
    "batched": ("ntd,ndf->ntf", (3, 5, 4), (3, 4, 2)),
    "transposed parameter": ("td,vd->tv", (5, 4), (7, 4)),
    "transposed parameter over a batch": ("btd,vd->btv", (2, 5, 4), (7, 4)),
    "transposed parameter, two contracted": ("bthd,fhd->btf", (2, 5, 3, 4), (6, 3, 4)),
    "transposed parameter, batched": ("ntd,nfd->ntf", (3, 5, 4), (3, 2, 4)),
    "contracted out of order": ("tdh,hdf->tf", (5, 4, 3), (3, 4, 2)),
    "vector": ("td,d->t", (5, 4), (4,)),
}


def through_products(fn):
    """Applies every equation of `fn` by `apply_primitive`."""

    def run(*args):
        program, shape = trace(fn, *args)
        env = dict(zip(program.jaxpr.invars, args, strict=True))
        for eqn in program.jaxpr.eqns:
            if "jaxpr" in eqn.params:  # einsum's own jit: one level of nesting
                inner = subprogram(eqn.params["jaxpr"]).jaxpr
                env.update(zip(inner.invars, [env[v] for v in eqn.invars], strict=True))
                for e in inner.eqns:
                    env.update(zip(e.outvars, apply_primitive(e, [env[v] for v in e.invars]), strict=True))
                env.update(zip(eqn.outvars, [env[v] for v in inner.outvars], strict=True))
            else:
                env.update(zip(eqn.outvars, apply_primitive(eqn, [env[v] for v in eqn.invars]), strict=True))
        return jax.tree.structure(shape).unflatten([env[v] for v in program.jaxpr.outvars])

    return run


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("name", EINSUMS)
def test_gradients_are_those_of_jax(name, dtype):
    spec, *shapes = EINSUMS[name]
    keys = jax.random.split(jax.random.key(0), 2)
    x, w = (jax.random.normal(k, s).astype(dtype) for k, s in zip(keys, shapes, strict=True))
    product = lambda x, w: jnp.einsum(spec, x, w, preferred_element_type=jnp.float32)
    for got, want in zip(
        jax.grad(lambda *a: (through_products(product)(*a) ** 2).sum(), argnums=(0, 1))(x, w),
        jax.grad(lambda *a: (product(*a) ** 2).sum(), argnums=(0, 1))(x, w),
        strict=True,
    ):
        assert got.dtype == want.dtype == dtype
        np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=1e-2, atol=1e-2)


IN_ITS_OWN_ORDER = [
    "dense",
    "dense over a batch",
    "two contracted dimensions",
    "batched",
    "transposed parameter",
    "transposed parameter over a batch",
    "transposed parameter, two contracted",
    "transposed parameter, batched",
]


@pytest.mark.parametrize("name", IN_ITS_OWN_ORDER)
def test_the_gradient_of_a_parameter_is_not_transposed(name):
    spec, *shapes = EINSUMS[name]
    x, w = (jnp.ones(s, jnp.float32) for s in shapes)
    of_weight = jax.grad(lambda w: through_products(lambda x, w: jnp.einsum(spec, x, w))(x, w).sum())
    assert "transpose" not in str(jax.make_jaxpr(of_weight)(w))


@pytest.mark.parametrize("name", IN_ITS_OWN_ORDER)
def test_a_parameter_is_read_before_its_gradient_is_made(name):
    spec, *shapes = EINSUMS[name]
    x, w = (jnp.ones(s, jnp.float32) for s in shapes)
    product = through_products(lambda x, w: jnp.einsum(spec, x, w))
    eqns = jax.make_jaxpr(lambda x, w, grad: jax.vjp(product, x, w)[1](grad))(x, w, product(x, w)).jaxpr.eqns
    made = {v: eqn.primitive.name for eqn in eqns for v in eqn.outvars}
    of_weight = [eqn for eqn in eqns if eqn.primitive.name == "dot_general"][-1]
    from_barrier = [made.get(v) == "optimization_barrier" for v in of_weight.invars]
    gradient_first = name.startswith("transposed")
    assert from_barrier == [gradient_first, not gradient_first]
