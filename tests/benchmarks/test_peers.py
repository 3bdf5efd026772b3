"""The hand-written steps do the same work however their state lies; only then is comparing with them fair."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from models import Subject, gpt
from peers import hand_written

import jzero

WAYS = [{"sharded": False}, {"sharded": True}, {"sharded": True, "constrained_at_use": True}]


def peer_of(subject, compute_dtype=None, **way):
    mesh, batch = jzero.make_mesh(), subject.batch(8)
    options = {"stacked": subject.stacked, "compute_dtype": compute_dtype, **way}
    return hand_written(subject.model, subject.loss_fn, mesh, batch, **options)


def train(peer, state, n_steps):
    random, losses = np.random.default_rng(0), []
    for _ in range(n_steps):
        batch = jax.tree.map(lambda x: jax.device_put(_values(random, x), x.sharding), peer.batch)
        state, loss = peer.step(state, batch)
        losses.append(float(loss))
    return losses, state


def _values(random, x):
    if jnp.issubdtype(x.dtype, jnp.integer):
        return random.integers(0, 10, x.shape, dtype=np.int32)
    return random.standard_normal(x.shape, np.float32)


@pytest.fixture(scope="module")
def small_gpt():
    """Embedding and feed-forward matrices are large enough to be divided."""
    return gpt(layers=2, d_model=128, seq_len=16, vocab_size=1024)


def test_all_ways_lead_to_the_same_losses(small_gpt):
    peers = [peer_of(small_gpt, **way) for way in WAYS]
    (expected, whole), *others = [train(peer, peer.init(), 2) for peer in peers]
    for found, state in others:
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        for x, like in zip(jax.tree.leaves(state), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(x, like, rtol=1e-3, atol=2e-4)
        divided = [x for x in jax.tree.leaves(state) if not x.sharding.is_fully_replicated]
        assert sum(x.size for x in divided) > 0.5 * 3 * small_gpt.n_params
        assert all(x.sharding.spec[0] is None or x.shape[0] > 2 for x in divided)  # the two layers are not divided


class Normalised(nnx.Module):
    def __init__(self, rngs):
        self.linear, self.norm = nnx.Linear(8, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.linear(x))


def test_batch_statistics_are_state():
    batch = lambda rows: {"x": jax.ShapeDtypeStruct((rows, 8), jnp.float32)}
    subject = Subject("normalised", Normalised, lambda model, batch: (model(batch["x"]) ** 2).mean(), batch, "vector")
    peer = peer_of(subject, sharded=True)
    state = peer.init()
    before = jax.tree.map(np.array, state[1])
    (loss,), (_, after, _) = train(peer, state, 1)
    assert loss == pytest.approx(1, rel=1e-3)  # over the whole batch, the outputs' variance is one
    assert all((x != y).any() for x, y in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True))
