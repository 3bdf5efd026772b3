"""Checkpoints on 8 devices: what was saved comes back, a killed save leaves the old one, errors are sentences."""

import json
import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jzero import checkpoint
from jzero.errors import CheckpointError
from jzero.mesh import make_mesh

REPLICATED, SHARDED, COLUMNS = PartitionSpec(), PartitionSpec("shard"), PartitionSpec(None, "shard")
METADATA = {"step": 7, "config": {"zero_optimization": {"stage": 3}}, "data": [1, 2.5, None, "text"]}


class Scaler(NamedTuple):
    scale: jax.Array
    exhausted: jax.Array


def make_state(seed=0, mesh=None, rows=16) -> dict[str, Any]:
    """Sharded, replicated, odd, empty and scalar leaves in dicts, lists and named tuples of several dtypes."""
    mesh = mesh or make_mesh()
    random = np.random.default_rng(seed)
    put = lambda x, spec: jax.device_put(jnp.asarray(x), NamedSharding(mesh, spec))
    floats = lambda *shape: random.standard_normal(shape, np.float32)
    params = {
        "embedding": put(floats(rows, 24), SHARDED),
        "layers": [{"kernel": put(floats(3, 24), COLUMNS), "bias": put(floats(7), REPLICATED)} for _ in range(2)],
        "odd": put(floats(13, 5), REPLICATED),
        "empty": put(floats(0), REPLICATED),
        "empty_sharded": put(floats(0, 8), SHARDED),
        "scalar": put(floats(), REPLICATED),
    }
    opt_state = optax.adamw(1e-3).init(params)
    return {
        "params": params,
        "opt_state": jax.tree.map(lambda x: x if x.ndim else put(np.asarray(x), REPLICATED), opt_state),
        "statistics": put(floats(4, 8).astype(jnp.bfloat16), COLUMNS),
        "loss_scale": Scaler(put(np.float32(65536), REPLICATED), put(np.bool_(False), REPLICATED)),
        "rng": put(np.array([seed, 1], np.uint32), REPLICATED),
        "step": put(np.int32(seed), REPLICATED),
    }


def abstract(state):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert a.sharding == b.sharding
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_round_trip(tmp_path):
    state = make_state(seed=3)
    path = tmp_path / "new" / "folders" / "checkpoint"
    checkpoint.save(path, state, METADATA)
    loaded, metadata = checkpoint.load(path, abstract(state))
    assert_same(loaded, state)
    assert isinstance(loaded["loss_scale"], Scaler)
    assert metadata == checkpoint.read_metadata(str(path)) == METADATA
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint"]


def test_loads_into_the_shardings_that_are_asked_for(tmp_path):
    checkpoint.save(tmp_path / "c", make_state(seed=1), {})
    fewer = make_state(seed=1, mesh=make_mesh(jax.devices()[:2]))
    loaded, _ = checkpoint.load(tmp_path / "c", abstract(fewer))
    assert_same(loaded, fewer)


def test_a_state_of_arrays_may_stand_for_its_own_shapes(tmp_path):
    checkpoint.save(tmp_path / "c", make_state(seed=1), {})
    loaded, _ = checkpoint.load(tmp_path / "c", make_state(seed=2))
    assert_same(loaded, make_state(seed=1))


def test_saving_again_replaces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        checkpoint.save("c", make_state(seed), {"seed": seed})
    loaded, metadata = checkpoint.load("c", abstract(make_state()))
    assert_same(loaded, make_state(2))
    assert metadata == {"seed": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def killed(*args, **kwargs):
    raise KeyboardInterrupt


def test_a_save_killed_while_writing_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    checkpoint.save(tmp_path / "c", make_state(1), {"seed": 1})
    with monkeypatch.context() as patch:
        # Everything is written but Orbax's commit, which renames the folder.
        patch.setattr(ocp.path.atomicity.AtomicRenameTemporaryPath, "finalize", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path / "c", make_state(2), {"seed": 2})
    assert len(list(tmp_path.iterdir())) == 2
    assert checkpoint.load(tmp_path / "c", make_state())[1] == {"seed": 1}
    checkpoint.save(tmp_path / "c", make_state(3), {"seed": 3})
    assert checkpoint.read_metadata(tmp_path / "c") == {"seed": 3}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_a_first_save_killed_while_writing_is_no_checkpoint(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ocp.path.atomicity.AtomicRenameTemporaryPath, "finalize", killed)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path / "c", make_state(1), {})
    with pytest.raises(CheckpointError, match="does not exist"):
        checkpoint.load(tmp_path / "c", make_state())


@pytest.mark.parametrize("n_renames", [0, 1])
def test_a_save_killed_while_swapping_loses_nothing(tmp_path, monkeypatch, n_renames):
    checkpoint.save(tmp_path / "c", make_state(1), {"seed": 1})
    rename = checkpoint.pathlib.Path.rename
    calls = []

    def rename_then_die(self, target):
        if len(calls) == n_renames:
            raise KeyboardInterrupt
        calls.append(target)
        return rename(self, target)

    with monkeypatch.context() as patch:
        # Orbax renames by other means; these two renames are the swap.
        patch.setattr(checkpoint.pathlib.Path, "rename", rename_then_die)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path / "c", make_state(2), {"seed": 2})
    loaded, metadata = checkpoint.load(tmp_path / "c", make_state())
    assert metadata == {"seed": n_renames + 1}
    assert_same(loaded, make_state(n_renames + 1))
    checkpoint.save(tmp_path / "c", make_state(3), {"seed": 3})
    assert checkpoint.read_metadata(tmp_path / "c") == {"seed": 3}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_nothing_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"There is no checkpoint at .*/c: the folder does not exist"):
        checkpoint.load(tmp_path / "c", make_state())


def test_a_folder_that_is_no_checkpoint_is_neither_read_nor_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        checkpoint.read_metadata(tmp_path)
    with pytest.raises(CheckpointError, match="already exists and is not a checkpoint"):
        checkpoint.save(tmp_path, make_state(), {})
    with pytest.raises(CheckpointError, match="already exists and is not a checkpoint"):
        checkpoint.save(tmp_path / "thesis.tex", make_state(), {})
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    checkpoint.save(tmp_path / "empty", make_state(), {})


def test_a_checkpoint_of_another_model(tmp_path):
    state = make_state()
    checkpoint.save(tmp_path / "c", state, {})
    other = make_state(rows=32)
    del other["step"], other["params"]["odd"]
    other["head"] = {f"kernel_{i}": state["rng"] for i in range(7)}
    with pytest.raises(CheckpointError) as raised:
        checkpoint.load(tmp_path / "c", abstract(other))
    message = str(raised.value)
    assert "is of another model" in message
    assert "7 of this model's leaves are missing in it (head/kernel_0 uint32[2], head/kernel_1 uint32[2]" in message
    assert "head/kernel_4 uint32[2], ...)" in message
    assert "head/kernel_5" not in message
    assert "2 leaves exist only in it (params/odd float32[13,5], step int32[])" in message
    assert "params/embedding is float32[16,24] there and float32[32,24] here" in message


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda file: file.write_text('{"format": 1, "lea'), "metadata of the checkpoint .* is damaged"),
        (lambda file: file.write_text("[]"), "lacks some of its fields"),
        (lambda file: file.unlink(), "metadata of the checkpoint .* is damaged"),
        (lambda file: file.write_text(json.dumps({"format": 99, "leaves": {}, "metadata": {}})), "has format 99"),
    ],
)
def test_damaged_metadata_is_named(tmp_path, damage, text):
    checkpoint.save(tmp_path / "c", make_state(), METADATA)
    damage(tmp_path / "c" / "header" / "metadata")
    with pytest.raises(CheckpointError, match=text):
        checkpoint.load(tmp_path / "c", make_state())


def truncate_files(folder):
    for file in folder.iterdir():
        file.write_bytes(file.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "folder"), [(shutil.rmtree, "state"), (shutil.rmtree, "state/d"), (truncate_files, "state/d")]
)
def test_damaged_arrays_are_named(tmp_path, damage, folder):
    # One leaf: of several reads, Orbax abandons the others when one fails, and they complain from their threads.
    state = {"kernel": make_state()["params"]["embedding"]}
    checkpoint.save(tmp_path / "c", state, METADATA)
    damage(tmp_path / "c" / folder)
    with pytest.raises(CheckpointError, match=r"arrays of the checkpoint .* are damaged or incomplete"):
        checkpoint.load(tmp_path / "c", state)


def test_metadata_that_is_no_json(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        checkpoint.save(tmp_path / "c", make_state(), {"array": np.ones(2)})
    assert not list(tmp_path.iterdir())
