"""Checkpoints wherever they may be: names that libraries would take for patterns, URLs or links; and what cannot be."""

import os

import jax.numpy as jnp
import numpy as np
import pytest

from jzero import checkpoint
from jzero.checkpoint import Checkpoints
from jzero.checkpoint.convert.exporting import export
from jzero.checkpoint.format import arrays
from jzero.checkpoint.run import place
from jzero.checkpoint.run.lock import FolderLock
from jzero.errors import CheckpointError

NAMES = ("run[1]", "[/red]", "p%d#1", "%41", "q?x", "a|b", "st*r", "-5", "a\x1b[31mb", "größe 配置", "s3:", "x\ny")


def state(value=0.0):
    return {"params": {"a": jnp.full(6, float(value)), "b": jnp.full((3, 3), float(value))}}


def save(path, value):
    checkpoint.save(path, state(value), {"step": 1}).wait()


def value_of(path):
    return float(checkpoint.load(path, state())[0]["params"]["b"][0, 0])


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_is_found_again_under_any_name(tmp_path, name):
    for path in (tmp_path / name / "checkpoint-1", tmp_path / "run" / name):
        save(path, 1)
        save(path, 2)
        assert [entry.name for entry in path.parent.iterdir()] == [path.name]
        assert value_of(path) == 2
        (file,) = export(path, tmp_path / "out" / name / path.name, format="npz")
        np.testing.assert_array_equal(np.load(file)["b"], np.full((3, 3), 2))
        assert arrays.stored_names(path) == {"params/a", "params/b"}


@pytest.mark.parametrize("name", ["a\\b", "gs:", "xgs:"])
def test_a_name_that_means_another_place_is_refused_before_anything_is_trained(tmp_path, name):
    says = r"cannot hold a checkpoint: where its arrays are written, '(gs:|\\\\)' in a path means another place; choose"
    for act in (lambda path: save(path, 1), checkpoint.read_header, lambda path: Checkpoints(None, path)):
        with pytest.raises(CheckpointError, match=says):
            act(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_read_again_is_not_called_saved(tmp_path, monkeypatch):
    save(tmp_path / "c", 1)
    monkeypatch.setattr(arrays, "stored_names", lambda folder: {"params/b"})
    with pytest.raises(CheckpointError, match=r"could not be written: params/a is not among what can be read again\."):
        save(tmp_path / "c", 2)
    assert value_of(tmp_path / "c") == 1


def test_a_link_can_be_saved_to_again_and_again(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "disk" / "c")
    for value in (1, 2, 3):
        save(tmp_path / "latest", value)
        assert value_of(tmp_path / "latest") == value_of(tmp_path / "disk" / "c") == value
        assert sorted(os.listdir(tmp_path)) == ["disk", "latest"]
        assert os.listdir(tmp_path / "disk") == ["c"]
        assert (tmp_path / "latest").is_symlink()


def test_a_link_and_what_it_leads_to_have_one_writer(tmp_path):
    save(tmp_path / "c", 1)
    (tmp_path / "latest").symlink_to("c")
    lock = FolderLock(tmp_path / ".c.lock", tmp_path / "c")
    with pytest.raises(CheckpointError, match=r"/c is being written by another run"):
        save(tmp_path / "latest", 2)
    lock.release()


def test_a_link_in_a_runs_folder_goes_alone(tmp_path):
    save(tmp_path / "kept" / "checkpoint-1", 1)
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoint-1").symlink_to(tmp_path / "kept" / "checkpoint-1")
    assert [step for step, _ in place.complete_in(run)] == [1]
    place.remove(run / "checkpoint-1")
    assert not list(run.iterdir())
    assert value_of(tmp_path / "kept" / "checkpoint-1") == 1
