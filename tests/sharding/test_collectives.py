"""Gather and scatter on 8 simulated devices, beside the same sums in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jzero.sharding import collectives
from jzero.sharding.collectives import (
    GradReduceConfig,
    gather_leaf,
    gather_over_groups,
    reduce_over_groups,
    scatter_leaf,
    sum_leaves,
)
from jzero.sharding.mesh import DATA_AXES
from jzero.sharding.placement import Placement
from tests.helpers import mesh_of

PLACEMENTS = [Placement((16, 3), 0, 8), Placement((3, 16), 1, 8), Placement((13, 2), 0, 8), Placement((2, 5), 1, 8)]
"""Divided on either dimension; padded; padded so far that some devices hold padding only."""


def over_devices(fn, mesh, in_specs, out_specs):
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False))


def full_of(placement, seed=0):
    return np.random.default_rng(seed).standard_normal(placement.shape).astype(np.float32)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
def test_gather_gives_the_true_array_on_every_device(placement):
    x = full_of(placement)
    run = over_devices(lambda s: gather_leaf(s, placement)[None], mesh_of(8), placement.spec, P("shard"))
    everywhere = np.asarray(run(placement.pad(jnp.asarray(x))))
    np.testing.assert_array_equal(everywhere, np.broadcast_to(x, (8, *x.shape)))


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("replica", [1, 2])
def test_scatter_leaves_each_device_its_shard_of_the_sum(placement, replica):
    placement = Placement(placement.shape, placement.dim, 8 // replica)
    grads = np.stack([full_of(placement, seed) for seed in range(8)])
    grad_reduce = GradReduceConfig(jnp.float32, replica, 8)
    reduced = lambda g: reduce_over_groups(scatter_leaf(g[0], placement, grad_reduce), placement, grad_reduce)
    run = over_devices(reduced, mesh_of(8, replica), P(DATA_AXES), placement.spec)
    total = placement.unpad(run(grads))
    np.testing.assert_allclose(np.asarray(total), grads.sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("n_groups", [2, 4])
def test_at_two_levels_both_hops_keep_the_order(placement, n_groups):
    placement = Placement(placement.shape, placement.dim, 8, n_groups=n_groups)
    grads = np.stack([full_of(placement, seed) for seed in range(8)])
    grad_reduce = GradReduceConfig(jnp.float32, n_groups, 8)

    def there_and_back(x, grads):
        total = reduce_over_groups(scatter_leaf(grads[0], placement.in_group, grad_reduce), placement, grad_reduce)
        return gather_leaf(gather_over_groups(x, placement), placement.in_group)[None], total

    x, specs = full_of(placement), (P(DATA_AXES), placement.spec)
    run = over_devices(there_and_back, mesh_of(8, n_groups), (placement.spec, P(DATA_AXES)), specs)
    everywhere, total = run(placement.pad(jnp.asarray(x)), grads)
    np.testing.assert_array_equal(np.asarray(everywhere), np.broadcast_to(x, (8, *x.shape)))
    np.testing.assert_allclose(np.asarray(placement.unpad(total)), grads.sum(0), rtol=1e-5, atol=1e-6)


def test_whole_gradients_are_summed_over_all_data_axes():
    grads = [np.arange(8, dtype=np.float32), np.arange(16, dtype=np.float32).reshape(8, 2)]
    run = over_devices(lambda g: sum_leaves([x[0] for x in g], GradReduceConfig()), mesh_of(8, 2), P(DATA_AXES), P())
    np.testing.assert_allclose(run(grads)[0], 28)
    np.testing.assert_allclose(run(grads)[1], grads[1].sum(0))
    assert sum_leaves([], GradReduceConfig()) == []


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sixteen_bit_sums_neither_overflow_nor_stay_in_sixteen_bits(dtype):
    placement, grad_reduce = PLACEMENTS[0], GradReduceConfig(dtype, 1, 8)
    grads = np.full((8, 16, 3), 30000, np.float32)  # the sum, 240000, is beyond fp16
    run = over_devices(lambda g: scatter_leaf(g[0], placement, grad_reduce), mesh_of(8), P("shard"), placement.spec)
    assert run(grads).dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(run(grads)), 240000, rtol=1e-2)
    assert "f32[16,3] = psum" not in str(jax.make_jaxpr(run)(grads))
    whole = over_devices(lambda g: sum_leaves([g[0]], grad_reduce)[0], mesh_of(8), P("shard"), P())
    np.testing.assert_allclose(np.asarray(whole(grads)), 240000, rtol=1e-2)


@pytest.mark.parametrize(
    ("keys", "fp16", "fp32"),
    [
        ({}, 8, 1),
        ({"prescale": True}, 8, 8),
        ({"predivide": 4.0}, 4, 4),
        ({"prescale": False, "predivide": 1.0}, 8, 1),
    ],
)
def test_what_gradients_are_divided_by_before_they_are_summed(keys, fp16, fp32):
    for dtype, divisor in ((jnp.float16, fp16), (jnp.bfloat16, fp16), (jnp.float32, fp32)):
        assert GradReduceConfig(dtype, n_summed=8, **keys).divisor == divisor


SCATTERED_IN_PIECES = [
    Placement((16, 30), 0, 8),
    Placement((30, 16), 1, 8),
    Placement((13, 40), 0, 8),
    Placement((5, 16, 11), 1, 8),
]


def scattered(placement, grad_reduce, dtype):
    """Scatters gradients of this dtype; gives the result and the shapes that travel."""
    grads = jnp.asarray(np.stack([full_of(placement, seed) for seed in range(8)]), dtype)
    run = over_devices(lambda g: scatter_leaf(g[0], placement, grad_reduce), mesh_of(8), P(DATA_AXES), placement.spec)
    (inside,) = jax.make_jaxpr(run)(grads).jaxpr.eqns[0].params["jaxpr"].jaxpr.eqns
    eqns = getattr(inside.params["jaxpr"], "jaxpr", inside.params["jaxpr"]).eqns
    sent = [e.invars[0].aval for e in eqns if e.primitive.name == "reduce_scatter"]
    return np.asarray(run(grads)), sent


@pytest.mark.parametrize("placement", SCATTERED_IN_PIECES, ids=str)
def test_a_large_gradient_is_widened_a_piece_at_a_time(placement, monkeypatch):
    grad_reduce = GradReduceConfig(jnp.float32, 1, 8)
    at_once, sent = scattered(placement, grad_reduce, jnp.bfloat16)
    assert len(sent) == 1
    monkeypatch.setattr(collectives, "PIECE_BYTES", 1000)
    in_pieces, sent = scattered(placement, grad_reduce, jnp.bfloat16)
    np.testing.assert_array_equal(in_pieces, at_once)
    assert len(sent) > 1
    # Padding is no part of the gradient.
    kept = placement.shape[placement.dim] / placement.padded_shape[placement.dim]
    assert all(piece.dtype == jnp.float32 for piece in sent)
    assert all(piece.size * 4 * kept <= 1000 for piece in sent)
    assert all(piece.shape[placement.dim] == placement.padded_shape[placement.dim] for piece in sent)
    assert sum(piece.size for piece in sent) == np.prod(placement.padded_shape)


def test_a_piece_is_at_least_one_slice_wide(monkeypatch):
    monkeypatch.setattr(collectives, "PIECE_BYTES", 1)
    _, sent = scattered(Placement((16, 6), 0, 8), GradReduceConfig(), jnp.bfloat16)
    assert [piece.shape for piece in sent] == [(16, 1)] * 6
    _, sent = scattered(Placement((16,), 0, 8), GradReduceConfig(), jnp.bfloat16)
    assert [piece.shape for piece in sent] == [(16,)]


def test_a_gradient_that_travels_as_it_is_travels_at_once(monkeypatch):
    monkeypatch.setattr(collectives, "PIECE_BYTES", 1)
    _, sent = scattered(SCATTERED_IN_PIECES[0], GradReduceConfig(), jnp.float32)
    assert len(sent) == 1


@pytest.mark.parametrize(("predivide", "total"), [(2.0, np.inf), (4.0, 2.0**17), (8.0, 2.0**17)])
@pytest.mark.parametrize("whole", [False, True])
def test_a_sum_that_is_divided_too_little_leaves_fp16(predivide, total, whole):
    placement, grad_reduce = PLACEMENTS[0], GradReduceConfig(jnp.float16, 1, 8, predivide=predivide)
    grads = np.full((8, 16, 3), 2.0**14, np.float32)
    local = lambda g: sum_leaves([g[0]], grad_reduce)[0] if whole else scatter_leaf(g[0], placement, grad_reduce)
    run = over_devices(local, mesh_of(8), P("shard"), P() if whole else placement.spec)
    assert {*np.unique(np.asarray(run(grads))).tolist()} == {total}


@pytest.mark.parametrize("whole", [False, True])
def test_rounded_fp32_carries_what_bf16_carries(whole):
    placement = PLACEMENTS[0]
    grads = np.stack([full_of(placement, seed) for seed in range(8)])
    totals = []
    for grad_reduce in (GradReduceConfig(jnp.bfloat16, 1, 8), GradReduceConfig(jnp.bfloat16, 1, 8, rounded=True)):
        local = lambda g, grad_reduce=grad_reduce: (
            sum_leaves([g[0]], grad_reduce)[0] if whole else scatter_leaf(g[0], placement, grad_reduce)
        )
        totals.append(over_devices(local, mesh_of(8), P("shard"), P() if whole else placement.spec)(grads))
    assert {str(t.dtype) for t in totals} == {"float32"}
    assert (np.asarray(totals[1]) == np.asarray(totals[1], jnp.bfloat16).astype(np.float32)).all()
    np.testing.assert_allclose(*map(np.asarray, totals), rtol=2.0**-7)


def test_integers_and_complex_numbers_are_summed_as_they_are():
    grads = [np.arange(8, dtype=np.int32), np.arange(8, dtype=np.complex64) * 1j]
    run = over_devices(
        lambda g: sum_leaves([x[0] for x in g], GradReduceConfig(jnp.bfloat16, 1, 8)), mesh_of(8), P("shard"), P()
    )
    totals = run(grads)
    assert [t.dtype for t in totals] == [jnp.int32, jnp.complex64]
    assert [complex(t) for t in totals] == [28, 28j]


@pytest.mark.parametrize("placement", PLACEMENTS, ids=str)
@pytest.mark.parametrize("casts", [(), (jnp.bfloat16,)], ids=["fp32", "bf16"])
def test_a_scatter_undoes_a_gather_for_gradients(placement, casts):
    """Device k computes sum(k * w**2); all devices together have the gradient 28 * 2 * w."""
    x = full_of(placement)

    def local(shard):
        k = jax.lax.axis_index("shard").astype(casts[0] if casts else jnp.float32)
        full = gather_leaf(shard, placement, casts)
        return scatter_leaf(jax.grad(lambda w: (k * w**2).sum())(full), placement, GradReduceConfig(n_summed=8))

    run = over_devices(local, mesh_of(8), placement.spec, placement.spec)
    padded = placement.pad(jnp.asarray(x))
    grad = run(padded)
    assert grad.dtype == jnp.float32
    np.testing.assert_allclose(np.asarray(placement.unpad(grad)), 56 * x, rtol=2e-2 if casts else 1e-5, atol=1e-5)
    assert float(jnp.abs(grad).sum()) == pytest.approx(float(jnp.abs(placement.unpad(grad)).sum()), rel=1e-6)


def test_a_parameter_travels_in_the_compute_dtype():
    placement = PLACEMENTS[0]
    run = over_devices(lambda s: gather_leaf(s, placement, (jnp.bfloat16,)), mesh_of(8), placement.spec, P())
    text = str(jax.make_jaxpr(run)(np.zeros((16, 3), np.float32)))
    assert "bf16[16,3] = all_gather" in text
    assert "f32[16,3] = all_gather" not in text
