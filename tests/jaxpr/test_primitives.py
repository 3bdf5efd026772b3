"""The table of primitives and the accessors of their parameters are true of the JAX that is installed."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas  # noqa: F401 (has a primitive in the table)
from jax.extend.core import Primitive
from jax.extend.core import primitives as jax_primitives
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jzero.jaxpr import JAX_VERSION, equations, every_equation, name_of, primitives, subprogram
from jzero.jaxpr import params as of
from jzero.jaxpr.policies import OFFLOAD

W = jnp.ones((4, 4))


def names_in_table():
    """Every name in `jzero.jaxpr.primitives`: constants that are a text, a set or a dict by name."""
    for constant, value in vars(primitives).items():
        if constant.isupper():
            yield from (value,) if isinstance(value, str) else value


def of_primitive(name, fn, *args):
    """The first equation of a primitive that a function is traced to."""
    return next(eqn for eqn, *_ in every_equation(jax.make_jaxpr(fn)(*args)) if name_of(eqn) == name)


def on_devices(fn):
    """Of 8 rows, one on each device."""
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    return jax.shard_map(fn, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)


def test_every_name_in_the_table_is_a_primitive_of_the_installed_jax():
    exist = {x.name for x in gc.get_objects() if Primitive in type(x).__mro__}
    missing = set(names_in_table()) - exist
    assert missing <= primitives.OF_SOME_VERSIONS
    assert missing == ({"closed_call", "call"} if JAX_VERSION >= (0, 12) else {"one_minus_square"})


def test_scan():
    def fn(w, x):
        return jax.lax.scan(lambda c, x: (c @ w, x), x, jnp.ones((3, 4)), reverse=True, unroll=2)

    eqn = of_primitive(primitives.SCAN, fn, W, W)
    scan = of.scan_of(eqn)
    assert primitives.is_scan(eqn)
    assert (scan.length, scan.reverse, scan.unroll) == (3, True, 2)
    assert scan.program is of.called_program(eqn)
    assert of.scan_arity(eqn) == (1, 1)
    assert of.rounds(eqn) == 3
    assert len(subprogram(scan.program).jaxpr.invars) == 3


def test_remat():
    eqn = of_primitive(primitives.REMAT, jax.checkpoint(jnp.sin, policy=OFFLOAD, prevent_cse=False), W)
    assert primitives.is_remat(eqn)
    assert of.remat_of(eqn) == (OFFLOAD, False)
    assert not of.recomputes_behind_barrier(eqn)
    assert [name_of(e) for e in equations(of.called_program(eqn))] == ["sin"]
    backward = jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum())
    assert of.recomputes_behind_barrier(of_primitive(primitives.REMAT, backward, W))


def a_custom_jvp(x):
    call = jax.custom_jvp(jnp.sin)
    call.defjvp(lambda primals, tangents: (jnp.sin(*primals), *tangents))
    return call(x)


def a_custom_vjp(x):
    call = jax.custom_vjp(jnp.sin)
    call.defvjp(lambda x: (jnp.sin(x), x), lambda x, grad: (grad,))
    return call(x)


def a_closed_call(x):
    call = jax_primitives.closed_call_p
    return call.bind(x, **call.get_bind_params({"call_jaxpr": jax.make_jaxpr(jnp.sin)(x)}))


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        (primitives.JIT, jax.jit(lambda x: jnp.sin(x))),
        (primitives.CUSTOM_JVP, a_custom_jvp),
        ("custom_vjp_call", a_custom_vjp),
        (jax_primitives.closed_call_p.name, a_closed_call),
    ],
)
def test_calls(name, fn):
    eqn = of_primitive(name, fn, W)
    inner = of.called_program(eqn)
    assert name in primitives.INLINED
    assert of.is_program(inner)
    assert inner in of.inner_jaxprs(eqn)
    assert [name_of(e) for e in equations(inner)] == ["sin"]
    assert of.rounds(eqn) == 1


def test_loops_of_unknown_length_and_branches_have_programs_inside():
    wait = of_primitive("while", lambda x: jax.lax.while_loop(lambda c: c.sum() < 3, lambda c: c + 1, x), W)
    branch = of_primitive("cond", lambda x: jax.lax.cond(x.sum() > 1, jnp.sin, jnp.cos, x), W)
    assert [len(of.inner_jaxprs(eqn)) for eqn in (wait, branch)] == [2, 2]
    assert {name_of(wait), name_of(branch)} < primitives.LOOPS


def test_shard_map():
    eqn = of_primitive(primitives.SHARD_MAP, on_devices(jnp.sin), jnp.ones(8))
    assert [name_of(e) for e in equations(of.called_program(eqn))] == ["sin"]


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        (primitives.ALL_GATHER, lambda x: jax.lax.all_gather(x, "i", tiled=True)),
        (primitives.REDUCE_SCATTER, lambda x: jax.lax.psum_scatter(jnp.ones(8) * x, "i", tiled=True)),
        ("psum", lambda x: jax.lax.psum(x, "i")),
        ("pmax", lambda x: jax.lax.pmax(x, "i")),
        ("pmin", lambda x: jax.lax.pmin(x, "i")),
        ("all_to_all", lambda x: jax.lax.all_to_all(jnp.ones(8) * x, "i", 0, 0, tiled=True)),
        ("ppermute", lambda x: jax.lax.ppermute(x, "i", [(k, (k + 1) % 8) for k in range(8)])),
    ],
)
def test_collectives(name, fn):
    assert name in primitives.COLLECTIVES
    assert of.mesh_axes(of_primitive(name, on_devices(fn), jnp.ones(8))) == ("i",)


def test_the_invariant_sum():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    fn = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    assert of.mesh_axes(of_primitive("psum_invariant", fn, jnp.ones(8))) == ("i",)


def test_dot_general():
    fn = lambda x, y: jnp.einsum("bij,bjk->bik", x, y, precision="highest", preferred_element_type=jnp.float32)
    dot = of.dot_of(of_primitive(primitives.DOT, fn, jnp.ones((2, 3, 4)), jnp.ones((2, 4, 5))))
    assert (dot.contract_left, dot.contract_right) == ((2,), (1,))
    assert (dot.batch_left, dot.batch_right) == ((0,), (0,))
    assert dot.precision == (jax.lax.Precision.HIGHEST,) * 2
    assert dot.preferred_element_type == jnp.float32


def test_convolution():
    def fn(x, kernel):
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), [(1, 1), (1, 1)], (2, 3), dimension_numbers=numbers)

    eqn = of_primitive(primitives.CONVOLUTION, fn, jnp.ones((1, 8, 8, 2)), jnp.ones((3, 3, 2, 5)))
    assert of.convolution_of(eqn) == (3, 6)


def test_lookup():
    fn = lambda x, i: x.at[i].get(indices_are_sorted=True, unique_indices=True, mode="clip")
    lookup = of.lookup_of(of_primitive(primitives.GATHER, fn, W, np.arange(2)))
    assert (lookup.indices_are_sorted, lookup.unique_indices) == (True, True)
    assert lookup.mode == jax.lax.GatherScatterMode.CLIP
    for part in (
        "offset_dims",
        "collapsed_slice_dims",
        "start_index_map",
        "operand_batching_dims",
        "start_indices_batching_dims",
    ):
        assert hasattr(lookup.dimension_numbers, part)


def test_what_only_rearranges_or_casts():
    cast = of_primitive(primitives.CONVERT, lambda x: x.astype(jnp.bfloat16), W)
    assert primitives.is_cast(cast)
    assert of.new_dtype(cast) == jnp.bfloat16
    turned = of_primitive(primitives.TRANSPOSE, lambda x: x.T, W)
    assert primitives.rearranges(turned)
    assert of.permutation(turned) == (1, 0)
    assert of.params_text(turned) == "[('permutation', '(1, 0)')]"
