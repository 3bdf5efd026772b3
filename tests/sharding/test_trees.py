"""Splitting, padding and placing the state; what mirrors a parameter lies like it, for any optax transformation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from jzero.sharding import trees as s
from jzero.sharding.placement import Placement
from tests.helpers import mesh_of

PARAMS = {
    "a": jnp.arange(26, dtype=jnp.float32).reshape(13, 2),
    "blocks": [{"kernel": jnp.ones((8, 24), jnp.float32), "bias": jnp.ones(5, jnp.float32)}],
    "scalar": jnp.asarray(2.0, jnp.float32),
}
PLACEMENTS = {
    "a": Placement((13, 2), 0, 8),
    "blocks": [{"kernel": Placement((8, 24), 1, 8), "bias": Placement((5,))}],
    "scalar": Placement(()),
}
MASK = {"a": True, "blocks": [{"kernel": False, "bias": True}], "scalar": False}


def placed(optimizer, params=PARAMS, placements=PLACEMENTS):
    """The distinct placements that each shape of leaf got."""
    state = jax.eval_shape(optimizer.init, params)
    found = s.place_like_params(state, params, placements)
    by_shape: dict[tuple, set] = {}
    for leaf, p in zip(jax.tree.leaves(state), jax.tree.leaves(found, is_leaf=s.is_placement), strict=True):
        assert p.shape == leaf.shape
        by_shape.setdefault(leaf.shape, set()).add((p.dim, p.n_shards))
    return by_shape


def test_split_and_join_undo_each_other():
    chosen, rest = s.split(PARAMS, MASK)
    assert rest["a"] is None
    assert chosen["blocks"][0]["kernel"] is None
    assert len(jax.tree.leaves(chosen)) == len(jax.tree.leaves(rest)) == 2
    assert s.join(chosen, rest) == PARAMS


def test_pad_and_unpad_undo_each_other():
    padded = s.pad(PARAMS, PLACEMENTS)
    assert padded["a"].shape == (16, 2)
    assert not np.asarray(padded["a"][13:]).any()
    back = s.unpad(padded, PLACEMENTS)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(np.asarray(x), np.asarray(y)), back, PARAMS)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adamw(0.1),
        optax.lamb(0.1),
        optax.sgd(0.1, momentum=0.9),
        optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(), optax.trace(0.9)),
        optax.multi_transform({"x": optax.adam(0.1), "y": optax.lion(0.1)}, {"a": "x", "blocks": "y", "scalar": "x"}),
        optax.masked(optax.adam(0.1), MASK),
        optax.apply_if_finite(optax.adam(0.1), 3),
        optax.MultiSteps(optax.adam(0.1), 2),
    ],
)
def test_moments_lie_like_their_parameters(optimizer):
    by_shape = placed(optimizer)
    assert by_shape[(13, 2)] == {(0, 8)}
    assert by_shape.get((8, 24), {(1, 8)}) == {(1, 8)}
    assert by_shape.get((5,), {(None, 1)}) == {(None, 1)}
    assert by_shape.get((), {(None, 1)}) == {(None, 1)}


def test_what_only_resembles_a_parameter_is_replicated():
    factored = placed(optax.scale_by_factored_rms(min_dim_size_to_factor=2))
    assert factored[(13,)] == factored[(8,)] == factored[(24,)] == {(None, 1)}
    by_shape = placed(optax.GradientTransformation(lambda p: {"history": jnp.zeros((13, 2), jnp.float32)}, None))
    assert by_shape == {(13, 2): {(None, 1)}}


def test_frozen_parameters_get_no_optimizer_state():
    chosen, _ = s.split(PARAMS, MASK)
    placements, _ = s.split(PLACEMENTS, MASK)
    assert set(placed(optax.adam(0.1), chosen, placements)) == {(), (13, 2), (5,)}


def test_stored_state_is_padded_and_sharded():
    abstract = s.stored(PLACEMENTS, PARAMS, mesh_of(8))
    assert abstract["a"].shape == (16, 2)
    assert abstract["a"].sharding.shard_shape((16, 2)) == (2, 2)
    assert abstract["blocks"][0]["kernel"].sharding.spec == PartitionSpec(None, "shard")
    shardings = s.shardings(PLACEMENTS, mesh_of(8))
    assert shardings["scalar"] == s.replicated(mesh_of(8))
