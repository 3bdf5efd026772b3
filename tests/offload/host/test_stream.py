"""Arrays in host memory that pass through the device in pieces: any number of rows, any size of piece."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jzero.offload.host.stream import reduce_in_pieces, rows_of, update_in_pieces
from jzero.sharding.host_memory import is_on_host, sharding
from jzero.sharding.mesh import make_mesh, shard_over_data

SPEC = P(None, "shard")


def sharded(x, *, on_host):
    return jax.device_put(x, sharding(make_mesh(), SPEC, on_host=on_host))


@pytest.mark.parametrize(
    ("shape", "piece"),
    [((3, 16, 4), 24), ((5, 8, 3), 6), ((7, 8), 1), ((2, 8), 10**6), ((1, 8, 1000), 10)],
    ids=["with a rest", "no rest", "row by row", "at once", "rows larger than a piece"],
)
def test_every_element_is_updated_once(shape, piece):
    x, g = (np.random.default_rng(i).normal(size=shape).astype(np.float32) for i in range(2))

    def local(x, m, g):
        assert is_on_host(x)
        assert not is_on_host(g)
        return update_in_pieces(lambda x, m, g: [x - 0.1 * (m + g), m + g], [x, m], [g], piece)

    step = jax.jit(shard_over_data(local, make_mesh(), (SPEC,) * 3, [SPEC, SPEC]))
    new, moment = step(sharded(x, on_host=True), sharded(2 * x, on_host=True), sharded(g, on_host=False))
    assert {y.sharding.memory_kind for y in (new, moment)} == {"pinned_host"}
    np.testing.assert_allclose(new, x - 0.1 * (2 * x + g), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(moment, 2 * x + g, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("on_host", [True, False])
def test_a_sum_over_pieces(on_host):
    x = np.random.default_rng(0).normal(size=(7, 16)).astype(np.float32)

    def local(x):
        total = reduce_in_pieces(lambda piece: jnp.sum(piece**2), x, jnp.float32(0), 6)
        return jax.lax.psum(total, "shard")

    total = jax.jit(shard_over_data(local, make_mesh(), SPEC, P()))(sharded(x, on_host=on_host))
    np.testing.assert_allclose(total, (x**2).sum(), rtol=1e-6)


def test_a_piece_never_exceeds_its_size_unless_one_row_does():
    for shape in [(36, 512, 4096), (50257, 5120), (3,), (), (2, 3, 10**6)]:
        rows, length, step = rows_of(shape, 2**20)
        assert rows * length == max(1, np.prod(shape, dtype=int))
        assert 1 <= step <= rows
        assert step * length <= 2**20 or step == 1
