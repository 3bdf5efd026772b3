"""States with leaves of every kind, and comparisons that look at every bit."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from jzero.sharding.mesh import make_mesh

REPLICATED, SHARDED, COLUMNS = PartitionSpec(), PartitionSpec("shard"), PartitionSpec(None, "shard")
METADATA = {"step": 7, "config": {"zero_optimization": {"stage": 3}}, "data": [1, 2.5, None, "text"]}


class Scaler(NamedTuple):
    scale: jax.Array
    exhausted: jax.Array


def make_state(seed: int = 0, n_devices: int = 8, rows: int = 16, kind: str | None = None) -> dict[str, Any]:
    """Sharded, replicated, odd, empty and scalar leaves in dicts, lists and named tuples of several dtypes."""
    mesh = make_mesh(jax.devices()[:n_devices])
    random = np.random.default_rng(seed)
    put = lambda x, spec: jax.device_put(jnp.asarray(x), NamedSharding(mesh, spec, memory_kind=kind))
    floats = lambda *shape: random.standard_normal(shape, np.float32)
    params = {
        "embedding": put(floats(rows, 24), SHARDED),
        "layers": [{"kernel": put(floats(3, 24), COLUMNS), "bias": put(floats(7), REPLICATED)} for _ in range(2)],
        "odd": put(floats(13, 5), REPLICATED),
        "empty": put(floats(0), REPLICATED),
        "empty_sharded": put(floats(0, 8), SHARDED),
        "scalar": put(floats(), REPLICATED),
    }
    moments = lambda: jax.tree.map(lambda x: put(random.standard_normal(x.shape, np.float32), x.sharding.spec), params)
    return {
        "params": params,
        "opt_state": optax.ScaleByAdamState(put(np.int32(seed), REPLICATED), moments(), moments()),
        "statistics": put(floats(4, 8).astype(jnp.bfloat16), COLUMNS),
        "halves": put(floats(8).astype(jnp.float16), SHARDED),
        "loss_scale": Scaler(put(np.float32(65536), REPLICATED), put(np.bool_(False), REPLICATED)),
        "recent": put(random.integers(0, 2, 100).astype(bool), REPLICATED),
        "rng": put(np.array([seed, 1], np.uint32), REPLICATED),
        "bytes": put(random.integers(-128, 127, 40, np.int8), SHARDED),
    }


def abstract(state: Any) -> Any:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def assert_same(actual: Any, expected: Any) -> None:
    """The same tree, dtypes, places and bits."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.sharding == b.sharding
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()
