"""Loading into a narrower dtype: what is rounded is rounded, and what would become infinite is refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jzero import checkpoint
from jzero.errors import CheckpointError
from jzero.sharding.mesh import make_mesh


def put(x, spec=("shard",)):
    return jax.device_put(x, NamedSharding(make_mesh(), PartitionSpec(*spec)))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint in which three leaves hold one number each that is too large for fp16."""
    large = np.arange(16, dtype=np.float32)
    large[13] = 7e4
    layer = np.full(8, -7e4, np.float32)
    tree = {
        "fits": np.full(16, 65504, np.float32),
        "infinite": np.full(16, np.inf, np.float32),
        "large": large,
        "h": {"0": {"w": np.ones(8, np.float32)}, "1": {"w": layer}},
        "wide": np.full(8, 3.4e38, np.float32),
    }
    path = tmp_path_factory.mktemp("saved") / "c"
    checkpoint.save(path, {"params": jax.tree.map(put, tree)}, {}).wait()
    return path


def load(path, leaves, dtype, **options):
    state = {"params": {name: put(jnp.zeros(shape, dtype), spec) for name, (shape, spec) in leaves.items()}}
    if "h/w" in state["params"]:
        state["params"]["h"] = {"w": state["params"].pop("h/w")}
    selection = checkpoint.Selection(extra="ignore", **options)
    return checkpoint.load(path, state, selection=selection)[0]["params"]


ROWS = ((16,), ("shard",))


@pytest.mark.parametrize(
    ("leaf", "place", "dtype"),
    [
        ("large", ROWS, "float16"),
        ("wide", ((8,), ("shard",)), "bfloat16"),
        ("h/w", ((2, 8), (None, "shard")), "float16"),
    ],
)
def test_what_a_narrower_state_cannot_hold_is_refused_by_name(saved, leaf, place, dtype):
    with pytest.raises(CheckpointError) as error:
        load(saved, {leaf: place, "fits": ROWS}, dtype, layers={"h/*": "h"})
    assert str(error.value) == (
        f"The checkpoint {saved} holds numbers that are too large for {dtype}, in which this run keeps its state "
        f"between steps: params/{leaf}; keep the state in float32, or what is as wide as it was saved in."
    )


def test_what_fits_is_rounded_and_what_was_infinite_stays_so(saved):
    read = load(saved, {"fits": ROWS, "infinite": ROWS}, "float16")
    assert {x.dtype.name for x in read.values()} == {"float16"}
    assert float(read["fits"][0]) == 65504
    assert np.isinf(read["infinite"]).all()
    assert float(load(saved, {"large": ROWS}, "bfloat16")["large"][13]) == 70144
