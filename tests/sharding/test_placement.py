"""Placements: invariants for any shape and any number of shards, and the choices that the design names."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from jzero.sharding import placement as layout
from jzero.sharding.placement import SMALL_LEAF_ELEMENTS, Placement, place

place_small = functools.partial(place, replicate_below=0)
shapes = st.lists(st.one_of(st.integers(0, 12), st.sampled_from([48, 64, 129, 500])), max_size=4).map(tuple)
shards = st.sampled_from([1, 2, 3, 6, 8, 64])
dims = st.sets(st.integers(0, 3))


@given(shapes, shards, st.sampled_from([0, 10, 1000, 10**9]), dims)
@settings(max_examples=400, deadline=None)
def test_invariants(shape, n_shards, replicate_below, unshardable_dims):
    p = place(shape, n_shards, replicate_below=replicate_below, unshardable_dims=unshardable_dims)
    size = math.prod(shape)
    assert p.shape == shape
    if p.dim is None:
        assert p.padded_shape == p.shard_shape == shape
        assert p.padding == 0
        assert p.spec == PartitionSpec()
        # Nothing that divides evenly is left whole without a reason.
        allowed = [d for d in range(len(shape)) if d not in unshardable_dims]
        if n_shards > 1 and size > replicate_below:
            assert not size or not any(shape[d] % n_shards == 0 for d in allowed)
        return
    assert p.dim not in unshardable_dims
    assert size > replicate_below
    assert p.n_shards == n_shards > 1
    assert p.spec == PartitionSpec(*[None] * p.dim, "shard")
    assert 0 <= p.padding < n_shards
    assert p.shard_shape[p.dim] * n_shards == p.padded_shape[p.dim] == shape[p.dim] + p.padding
    assert math.prod(p.shard_shape) < size
    others = [d for d in range(len(shape)) if d != p.dim]
    assert all(p.padded_shape[d] == p.shard_shape[d] == shape[d] for d in others)
    if p.padding:
        assert size > SMALL_LEAF_ELEMENTS
        assert all(shape[d] % n_shards for d in others if d not in unshardable_dims)
    else:
        assert all(shape[d] % n_shards for d in range(p.dim) if d not in unshardable_dims)


@given(shapes.filter(lambda s: math.prod(s) < 20_000), shards, st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_padding_is_undone_and_is_zero(shape, n_shards, dim):
    p = Placement(shape, dim, n_shards) if dim < len(shape) else Placement(shape)
    x = np.arange(1, math.prod(shape) + 1, dtype=np.float32).reshape(shape)
    padded = np.asarray(p.pad(jnp.asarray(x)))
    assert padded.shape == p.padded_shape
    assert np.count_nonzero(padded) == x.size
    np.testing.assert_array_equal(np.asarray(p.unpad(jnp.asarray(padded))), x)


@pytest.mark.parametrize("n_shards", [1, 2, 3, 6, 8, 64])
@pytest.mark.parametrize("shape", [(), (0,), (0, 8), (64, 0), (1,), (5,)])
def test_scalars_empty_and_small_odd_leaves_stay_whole(shape, n_shards):
    p = place_small(shape, n_shards)
    assert p.dim is None
    assert p.shard_shape == shape


def test_the_first_dimension_that_divides_is_taken():
    assert place_small((64, 64), 8).dim == 0
    assert place_small((9, 64, 64), 8).dim == 1
    assert place_small((8, 8, 64), 64).dim == 2


@pytest.mark.parametrize(("n_shards", "dim", "padded"), [(64, 1, (50257, 768)), (6, 1, (50257, 768)), (1, None, None)])
def test_gpt2_vocabulary(n_shards, dim, padded):
    p = place((50257, 768), n_shards)
    assert p.dim == dim
    assert p.padded_shape == (padded or p.shape)


def test_a_vocabulary_that_nothing_divides_is_padded_where_it_costs_least():
    assert place((50257, 771), 64).padded_shape == (50304, 771)
    assert place((50257,), 64).shard_shape == (786,)
    assert place((129, 131), 64).padded_shape in [(192, 131), (129, 192)]


def test_a_scanned_dimension_is_never_divided_not_even_padded():
    assert place_small((8, 9, 16), 8, unshardable_dims={0}).dim == 2
    assert place_small((8,), 8, unshardable_dims={0}).dim is None
    assert place((64, 301, 401), 8, unshardable_dims={0}).dim in (1, 2)


def test_small_leaves_stay_whole_up_to_the_threshold():
    assert place((8, 8), 8, replicate_below=64).dim is None
    assert place((8, 8), 8, replicate_below=63).dim == 0


def test_a_tree_is_placed_leaf_by_leaf():
    tree = {"a": jax.ShapeDtypeStruct((16, 3), jnp.float32), "b": [jnp.zeros((16, 16), jnp.int32), jnp.zeros(())]}
    placements = layout.place_all(tree, 8, replicate_below=0, unshardable_dims={1: {0}})
    assert placements == {
        "a": Placement((16, 3), 0, 8),
        "b": [Placement((16, 16), 1, 8, stacked=True), Placement(())],
    }
    assert layout.place_all(tree, 8, replicate_below=48)["a"].dim is None


def test_names_are_dotted():
    params = {"a": 0, "blocks": [{"bias": 1, "kernel": 2}]}
    names = [layout.path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    assert names == ["a", "blocks.0.bias", "blocks.0.kernel"]
