"""What was saved comes back in any layout, bit for bit; what is there is neither lost nor mistaken."""

import json
import sys
import threading

import jax
import numpy as np
import pytest

from jzero import checkpoint
from jzero.checkpoint.format import arrays
from jzero.checkpoint.run import place
from jzero.errors import CheckpointError
from jzero.sharding.placement import Placement
from jzero.sharding.trees import pad, stored
from tests.checkpoint.states import METADATA, abstract, assert_same, make_state
from tests.helpers import mesh_of


def save(path, state, metadata=METADATA, **options):
    checkpoint.save(path, state, metadata, **options).wait()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a checkpoint of `make_state(1)`."""
    path = tmp_path_factory.mktemp("saved") / "new" / "folders" / "checkpoint"
    save(path, make_state(1))
    return path


def test_everything_comes_back(saved):
    loaded, metadata = checkpoint.load(saved, abstract(make_state(2)))
    assert_same(loaded, make_state(1))
    assert metadata == METADATA
    assert [entry.name for entry in saved.parent.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize(("n_devices", "kind"), [(2, None), (1, None), (8, "pinned_host"), (2, "pinned_host")])
def test_it_loads_into_other_devices_and_memories(saved, n_devices, kind):
    other = make_state(1, n_devices, kind=kind)
    assert_same(checkpoint.load(saved, abstract(other))[0], other)


def test_a_state_in_host_memory_is_saved_like_any_other(saved, tmp_path):
    save(tmp_path / "c", make_state(1, kind="pinned_host"))
    assert_same(checkpoint.load(tmp_path / "c", make_state(0))[0], make_state(1))
    leaves = [checkpoint.read_header(path)[1].leaves for path in (tmp_path / "c", saved)]
    assert leaves[0] == leaves[1]


@pytest.mark.parametrize(("n_devices", "kind"), [(8, None), (2, "pinned_host")])
def test_longer_leaves_keep_what_lies_beyond_the_saved_part(saved, n_devices, kind):
    longer = make_state(2, n_devices, rows=48, kind=kind)
    before = jax.tree.map(np.asarray, longer)
    loaded, _ = checkpoint.load(saved, longer, selection=checkpoint.Selection(grow="pad"), donate=True)
    assert_same(loaded["params"]["layers"], make_state(1, n_devices, kind=kind)["params"]["layers"])
    for part, old, new in (
        (loaded["params"], make_state(1)["params"], before["params"]),
        (loaded["opt_state"].mu, make_state(1)["opt_state"].mu, before["opt_state"].mu),
    ):
        expected = np.concatenate([np.asarray(old["embedding"]), new["embedding"][16:]])
        np.testing.assert_array_equal(part["embedding"], expected)
        assert part["embedding"].sharding == longer["params"]["embedding"].sharding


def test_memory_may_be_reused_at_once(tmp_path):
    state, expected = make_state(3), make_state(3)
    change = jax.jit(lambda s: jax.tree.map(lambda x: ~x if x.dtype == bool else -x - 1, s), donate_argnums=0)
    writer, may_write = sys.modules["jzero.checkpoint.run.saving"]._WRITER, threading.Event()
    writer.submit(may_write.wait, 30)  # nothing is written before the state has changed
    saving = checkpoint.save(tmp_path / "c", state, {})
    for _ in range(3):
        state = change(state)
    jax.block_until_ready(state)
    assert not saving.done
    may_write.set()
    saving.wait()
    assert_same(checkpoint.load(tmp_path / "c", abstract(expected))[0], expected)


@pytest.mark.parametrize("kind", [None, "pinned_host"])
def test_the_file_holds_true_shapes_whatever_the_padding(tmp_path, kind):
    values = {"odd": np.arange(13 * 5, dtype=np.float32).reshape(13, 5), "even": np.ones((16, 3), np.float32)}
    for n_devices in (8, 3):
        placements = {"odd": Placement((13, 5), 0, n_devices), "even": Placement((16, 3), 0, n_devices)}
        dtypes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in values.items()}
        like = stored(placements, dtypes, mesh_of(n_devices))
        like = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding.with_memory_kind(kind or "device")),
            like,
        )
        if n_devices == 8:
            padded = pad({name: jax.numpy.asarray(x) for name, x in values.items()}, placements)
            save(
                tmp_path / "c",
                jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), padded, like),
                placements=placements,
            )
        loaded, _ = checkpoint.load(tmp_path / "c", like, placements=placements)
        assert loaded["odd"].shape == placements["odd"].padded_shape
        for name, x in loaded.items():
            whole = np.asarray(x)
            rows = len(values[name])
            np.testing.assert_array_equal(whole[:rows], values[name])
            assert not whole[rows:].any()
    _, header = checkpoint.read_header(tmp_path / "c")
    assert header.leaves["odd"].shape == (13, 5)
    assert arrays.open_leaf(tmp_path / "c", "odd").shape == (13, 5)


def test_saving_again_replaces(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        save("c", make_state(seed), {"seed": seed})
    loaded, metadata = checkpoint.load("c", abstract(make_state()))
    assert_same(loaded, make_state(2))
    assert metadata == {"seed": 2}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


@pytest.mark.parametrize("n_renames", [0, 1])
def test_a_save_killed_while_swapping_loses_nothing(tmp_path, monkeypatch, n_renames):
    save(tmp_path / "c", make_state(1), {"seed": 1})
    rename, calls = place.Path.rename, []

    def rename_then_die(self, target):
        if "c" in {self.name, target.name} or ".outdated" in target.name:
            if len(calls) == n_renames:
                raise KeyboardInterrupt
            calls.append(target)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(place.Path, "rename", rename_then_die)
        with pytest.raises(KeyboardInterrupt):
            _swap(tmp_path / "c", make_state(2), {"seed": 2})
    loaded, metadata = checkpoint.load(tmp_path / "c", make_state())
    assert metadata == {"seed": n_renames + 1}
    assert_same(loaded, make_state(n_renames + 1))
    save(tmp_path / "c", make_state(3), {"seed": 3})
    assert checkpoint.read_header(tmp_path / "c")[1].metadata == {"seed": 3}
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def _swap(path, state, metadata):
    """The last moment of a save, on this thread."""
    save(path.with_name("other"), state, metadata)
    path.with_name("other").replace(place.staging(path))
    place.swap_in(path)


def test_nothing_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"There is no checkpoint at .*/c: the folder does not exist"):
        checkpoint.load(tmp_path / "c", make_state())


def test_a_folder_that_is_no_checkpoint_is_neither_read_nor_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        checkpoint.read_header(tmp_path)
    with pytest.raises(CheckpointError, match="already exists and is not a checkpoint"):
        save(tmp_path, make_state())
    with pytest.raises(CheckpointError, match="already exists and is not a checkpoint"):
        save(tmp_path / "thesis.tex", make_state())
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    (tmp_path / "empty").mkdir()
    save(tmp_path / "empty", make_state())
    assert {entry.name for entry in tmp_path.iterdir()} == {"thesis.tex", "empty"}


def test_metadata_that_is_no_json(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be written as JSON"):
        save(tmp_path / "c", make_state(), {"array": np.ones(2)})
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_another_version_is_said_to_be_one(saved, tmp_path):
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "jzero.json").write_text(json.dumps({"crc32": 0, "content": {"format": 99}}))
    with pytest.raises(CheckpointError, match="has format 99; this version of jzero reads format 2"):
        checkpoint.read_header(tmp_path / "c")
