"""A run's folder: what is kept, what is found again, and who may write."""

import fcntl
import json
import os
import re
import subprocess
import sys
import time

import jax.numpy as jnp
import pytest

from jzero import checkpoint
from jzero.checkpoint import Checkpoints, load_newest
from jzero.checkpoint.run import place
from jzero.errors import CheckpointError


class Engine:
    """Its state is the step at which it was saved."""

    def save_checkpoint(self, path, extra=None, *, wait=True):
        return checkpoint.save(path, {"x": jnp.arange(3.0) + extra["step"]}, extra)


def load(path):
    state, metadata = checkpoint.load(path, {"x": jnp.zeros(3)})
    assert float(state["x"][0]) == metadata["step"]
    return metadata["step"]


def save_steps(folder, steps, **options):
    with Checkpoints(Engine(), folder, **options) as checkpoints:
        for step in steps:
            checkpoints.save(step, {"step": step})


def steps(folder):
    return [step for step, _ in place.complete_in(folder)]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, [1, 2, 3, 4, 5]),
        ({"max_to_keep": 2}, [4, 5]),
        ({"max_to_keep": 1, "keep_every": 2}, [2, 4, 5]),
        ({"max_to_keep": 9}, [1, 2, 3, 4, 5]),
    ],
)
def test_the_newest_stay_and_those_kept_for_their_step(tmp_path, options, kept):
    save_steps(tmp_path, [1, 2, 3, 4, 5], **options)
    assert steps(tmp_path) == kept
    assert {entry.name for entry in tmp_path.iterdir()} == {f"checkpoint-{step}" for step in kept}


def test_old_checkpoints_go_as_soon_as_the_new_one_is_complete(tmp_path):
    with Checkpoints(Engine(), tmp_path, max_to_keep=1) as checkpoints:
        checkpoints.save(1, {"step": 1})
        checkpoints.save(2, {"step": 2})
        deadline = time.monotonic() + 30
        while steps(tmp_path) != [2] and time.monotonic() < deadline:
            checkpoints.tick()
        assert steps(tmp_path) == [2]


def test_a_new_run_in_the_folder_of_an_older_one_keeps_its_own(tmp_path):
    save_steps(tmp_path, [100, 200], max_to_keep=2)
    save_steps(tmp_path, [10], max_to_keep=2)
    assert steps(tmp_path) == [200, 10]
    assert place.find(tmp_path) == tmp_path / "checkpoint-10"
    assert load_newest(tmp_path, load) == (tmp_path / "checkpoint-10", 10, [])


def damage_header(path, keep=b""):
    (path / "jzero.json").write_bytes(keep + b"\0" * 40)


def test_the_newest_is_told_by_order_and_not_by_clocks(tmp_path, monkeypatch):
    save_steps(tmp_path, [10, 20], max_to_keep=2)
    clock = time.time
    monkeypatch.setattr("jzero.checkpoint.format.header.time.time", lambda: clock() - 600)  # another host goes on
    save_steps(tmp_path, [30, 40], max_to_keep=2)
    assert steps(tmp_path) == [30, 40]
    assert place.find(tmp_path) == tmp_path / "checkpoint-40"
    save_steps(tmp_path, [40, 5])
    assert steps(tmp_path) == [30, 40, 5]
    assert load_newest(tmp_path, load)[1] == 5


def test_those_of_an_older_version_are_older_and_in_the_order_of_the_clock(tmp_path):
    save_steps(tmp_path, [1, 2, 3])
    for step, saved_at in ((1, 3.5), (2, 1e12), (3, 2)):
        file = tmp_path / f"checkpoint-{step}" / "jzero.json"
        _, _, rest = file.read_text().partition('"crc32"')
        file.write_text(f'{{"saved_at": {saved_at}, "crc32"{rest}')
    assert steps(tmp_path) == [3, 1, 2]
    save_steps(tmp_path, [4])
    assert steps(tmp_path) == [3, 1, 2, 4]


def test_a_damaged_header_is_never_the_oldest(tmp_path):
    save_steps(tmp_path, [1, 2, 3])
    damage_header(tmp_path / "checkpoint-2")
    save_steps(tmp_path, [4, 5], max_to_keep=2)
    assert steps(tmp_path) == [4, 5, 2]
    with pytest.raises(CheckpointError, match=r"checkpoint-2 is damaged: jzero\.json cannot be read"):
        load(tmp_path)
    path, step, (sentence,) = load_newest(tmp_path, load)
    assert (path.name, step) == ("checkpoint-5", 5)
    assert "checkpoint-2 is damaged: jzero.json cannot be read" in sentence


def test_an_order_that_was_changed_is_damage(tmp_path):
    save_steps(tmp_path, [1])
    file = tmp_path / "checkpoint-1" / "jzero.json"
    file.write_text(file.read_text().replace('"order": 1', '"order": 9', 1))
    with pytest.raises(CheckpointError, match="its order does not have its checksum"):
        load(tmp_path)


def test_what_a_process_saved_is_not_pruned_by_it(tmp_path):
    save_steps(tmp_path, [1, 2])
    for step in (1, 2):  # as if they were newer than all that follow
        file = tmp_path / f"checkpoint-{step}" / "jzero.json"
        file.write_text(re.sub('"order": [0-9]+', f'"order": {10**9}', file.read_text()))
    next_order = place.next_order
    with Checkpoints(Engine(), tmp_path, max_to_keep=2) as checkpoints, pytest.MonkeyPatch.context() as patch:
        patch.setattr("jzero.checkpoint.run.saving.next_order", lambda folder: next_order(folder / "elsewhere"))
        for step in (3, 4, 5):
            checkpoints.save(step, {"step": step})
    assert {3, 4, 5} & set(steps(tmp_path)) == {4, 5}


def test_another_runs_checkpoints_are_neither_removed_nor_replaced(tmp_path):
    save_steps(tmp_path, [2, 9])
    others, told = [tmp_path / "checkpoint-2", tmp_path / "checkpoint-9"], []
    with Checkpoints(Engine(), tmp_path, max_to_keep=1, report=told.append) as checkpoints:
        checkpoints.leave_alone(others)
        for step in (7, 8):
            checkpoints.save(step, {"step": step})
        checkpoints.finish()
        assert steps(tmp_path) == [2, 9, 8]
        checkpoints.save(9, {"step": 100})
        with pytest.raises(CheckpointError, match=r"checkpoint-9 is a checkpoint of another run; it is left alone"):
            checkpoints.finish()
    assert load(others[1]) == 9
    assert len(told) == 1


def test_a_last_save_that_could_not_begin_is_an_error(tmp_path):
    (tmp_path / "checkpoint-2").write_text("in the way")
    with Checkpoints(Engine(), tmp_path) as checkpoints:
        checkpoints.save(1, {"step": 1})
        checkpoints.save(2, {"step": 2})
        with pytest.raises(CheckpointError, match="checkpoint-2 already exists and is not a checkpoint"):
            checkpoints.finish()
        checkpoints.save(3, {"step": 3})
        checkpoints.finish()


def test_the_newest_whole_one_is_loaded_and_the_damaged_are_told(tmp_path):
    assert load_newest(tmp_path / "nowhere", load) is None
    save_steps(tmp_path, [1, 2, 3])
    (tmp_path / "checkpoint-4").mkdir()  # not one of ours, or not complete
    (tmp_path / "checkpoint-3" / "arrays" / "manifest.ocdbt").write_bytes(b"")
    path, step, passed_over = load_newest(tmp_path, load)
    assert (path.name, step) == ("checkpoint-2", 2)
    (sentence,) = passed_over
    assert "checkpoint-3 is damaged: arrays/manifest.ocdbt is 0 bytes long" in sentence
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}" / "jzero.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"Every checkpoint in .* is damaged\. The checkpoint .*checkpoint-2 "):
        load_newest(tmp_path, load)


def test_one_whose_swap_was_cut_short_counts(tmp_path):
    save_steps(tmp_path, [1, 2])
    (tmp_path / "checkpoint-2").rename(place.staging(tmp_path / "checkpoint-2"))
    assert steps(tmp_path) == [1, 2]
    assert load_newest(tmp_path, load)[1] == 2
    assert load(tmp_path / "checkpoint-2") == 2


def test_what_killed_processes_left_is_finished_or_cleared_away(tmp_path):
    save_steps(tmp_path, [1, 2, 3, 4])
    (tmp_path / "checkpoint-2").rename(place.staging(tmp_path / "checkpoint-2"))  # complete, not yet in its place
    (tmp_path / "checkpoint-3").rename(tmp_path / ".checkpoint-3.removed")  # half removed
    unfinished = tmp_path / ".checkpoint-5.saving.orbax-checkpoint-tmp"
    (tmp_path / "checkpoint-4").rename(unfinished)
    (tmp_path / ".checkpoint-5.lock").touch()
    (tmp_path / ".checkpoint-notes").mkdir()
    Checkpoints(Engine(), tmp_path).close()
    assert {entry.name for entry in tmp_path.iterdir()} == {"checkpoint-1", "checkpoint-2", ".checkpoint-notes"}
    assert load_newest(tmp_path, load)[1] == 2


@pytest.mark.parametrize("times", [1, 2])
def test_a_swap_that_fails_leaves_one_of_the_two(tmp_path, monkeypatch, times):
    def save(x):
        checkpoint.save(tmp_path / "c", {"x": jnp.zeros(3) + x}, {"step": x}).wait()

    save(1)
    rename, failures = place.Path.rename, iter([OSError(5, "Input/output error")] * times)

    def rename_or_fail(self, target):
        if self == place.staging(tmp_path / "c") and (error := next(failures, None)):
            raise error
        return rename(self, target)

    monkeypatch.setattr(place.Path, "rename", rename_or_fail)
    with pytest.raises(CheckpointError, match=r"c could not be written: Input/output error\."):
        save(2)
    assert load(tmp_path / "c") == 2
    save(3)
    assert load(tmp_path / "c") == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_two_runs_may_not_write_to_one_folder(tmp_path):
    with Checkpoints(Engine(), tmp_path):
        with pytest.raises(CheckpointError) as error:
            Checkpoints(Engine(), tmp_path)
        message = str(error.value)
        assert message.startswith(f"{tmp_path} is being written by another run (process {os.getpid()} on ")
        assert message.endswith("; stop it or choose another folder.")
    Checkpoints(Engine(), tmp_path).close()


def test_two_processes_may_not_write_one_checkpoint(tmp_path):
    with (tmp_path / ".c.lock").open("w") as lock:
        lock.write("an editor's note")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CheckpointError, match=r"c is being written by another run \(unknown to its lock file\)"):
            checkpoint.save(tmp_path / "c", {"x": jnp.ones(3)}, {})
    checkpoint.save(tmp_path / "c", {"x": jnp.ones(3)}, {}).wait()
    assert [entry.name for entry in tmp_path.iterdir()] == ["c"]


def test_the_lock_of_a_dead_process_is_stale(tmp_path):
    script = """if True:
        import os, pathlib, sys
        from jzero.checkpoint.run.lock import FolderLock
        lock = FolderLock(pathlib.Path(sys.argv[1], ".lock"), pathlib.Path(sys.argv[1]))
        os.kill(os.getpid(), 9)
    """
    killed = subprocess.run([sys.executable, "-c", script, tmp_path], check=False)
    assert killed.returncode == -9
    assert json.loads((tmp_path / ".lock").read_text())["pid"] != os.getpid()
    save_steps(tmp_path, [1])
    assert steps(tmp_path) == [1]


def test_a_save_is_due_by_the_clock(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("jzero.checkpoint.run.folder.time.monotonic", lambda: now[0])
    with Checkpoints(Engine(), tmp_path, save_minutes=2) as checkpoints:
        assert not checkpoints.due()
        now[0] += 120
        assert checkpoints.due()
        checkpoints.save(1, {"step": 1})
        assert not checkpoints.due()
    with Checkpoints(Engine(), tmp_path) as checkpoints:
        now[0] += 1e6
        assert not checkpoints.due()


def test_a_system_without_locks_is_told_and_saves(tmp_path, monkeypatch):
    monkeypatch.setattr("jzero.checkpoint.run.lock.fcntl", None)
    sentence = re.escape(f"{tmp_path} cannot be locked: nothing keeps other runs from writing to it.")
    with pytest.warns(UserWarning, match=f"^{sentence}$"):
        save_steps(tmp_path, [1])
    assert steps(tmp_path) == [1]
