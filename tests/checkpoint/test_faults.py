"""Real faults: full and read-only file systems, files cut short, flipped, gone. A sentence each; the rest is whole."""

import os
import resource
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jzero import checkpoint
from jzero.checkpoint import Checkpoints
from jzero.checkpoint.run.place import clear, staging
from jzero.errors import CheckpointError, DamagedCheckpointError
from jzero.sharding.mesh import make_mesh

ROWS = 64


def state(seed: int) -> dict[str, jax.Array]:
    """1.5 MB in two leaves of three quarters, and a scalar."""
    random = np.random.default_rng(seed)
    put = lambda x, spec: jax.device_put(x, NamedSharding(make_mesh(), spec))
    large = lambda: put(random.standard_normal((ROWS, 3072), np.float32), PartitionSpec("shard"))
    return {"a": large(), "b": large(), "step": put(np.int32(seed), PartitionSpec())}


def save(path: Path, seed: int) -> None:
    checkpoint.save(path, state(seed), {"seed": seed}).wait()


def assert_is(path: Path, seed: int) -> None:
    loaded, metadata = checkpoint.load(path, state(0))
    assert metadata == {"seed": seed}
    jax.tree.map(np.testing.assert_array_equal, loaded, state(seed))


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[bool]:
    """Mounts a file system in memory, if this machine lets us."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def full(folder: Path) -> Iterator[str]:
    """A folder with room for one checkpoint and a half; yields what the system says of a second one."""
    with mounted(folder, "size=2500k") as small:
        if small:
            yield "No space left on device"
            return
        before = resource.getrlimit(resource.RLIMIT_FSIZE)  # then a limit of the size of a file must do
        save(folder / "kept", 1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        try:
            yield "File too large"
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def read_only(folder: Path) -> Iterator[str]:
    """A folder that nothing can be written to; yields what the system says."""
    with mounted(folder, "size=8m") as own:
        save(folder / "kept", 1)
        if own:
            subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
            yield "Read-only file system"
            return
        folder.chmod(0o555)
        user = os.geteuid()
        try:
            if user == 0:  # whom permissions do not bind
                os.seteuid(65534)
            yield "Permission denied"
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


def test_a_full_disk_is_a_sentence_and_leaves_the_older_checkpoint(tmp_path):
    with full(tmp_path / "disk") as words:
        folder = tmp_path / "disk"
        if not (folder / "kept").exists():
            save(folder / "kept", 1)
        with pytest.raises(CheckpointError) as error:
            save(folder / "next", 2)
        assert str(error.value) == f"The checkpoint {folder / 'next'} could not be written: {words}."
        assert [entry.name for entry in folder.iterdir()] == ["kept"], "what was unfinished makes room"
        assert_is(folder / "kept", 1)
        with pytest.raises(CheckpointError):
            save(folder / "kept", 3)
        assert_is(folder / "kept", 1)


def test_what_a_failed_save_still_writes_for_a_moment_goes_too(tmp_path, monkeypatch):
    fails, rmtree = [1, 2, 3], shutil.rmtree  # a folder that is written to cannot be removed
    monkeypatch.setattr(shutil, "rmtree", lambda *args, **kwargs: fails.pop() if fails else rmtree(*args, **kwargs))
    leftover = tmp_path / f"{staging(tmp_path / 'next').name}.part"
    leftover.mkdir()
    clear(tmp_path / "next")
    assert not leftover.exists()


def test_a_read_only_folder_is_a_sentence(tmp_path):
    with read_only(tmp_path / "disk") as words:
        target = tmp_path / "disk" / "next"
        with pytest.raises(CheckpointError) as error:
            save(target, 2)
        assert str(error.value) == f"The checkpoint {target} could not be written: {words}."
        with pytest.raises(CheckpointError) as error:
            Checkpoints(Engine(), tmp_path / "disk")
        assert str(error.value) == f"cannot write to {tmp_path / 'disk'}: {words}."
    if (tmp_path / "disk" / "kept").exists():
        assert_is(tmp_path / "disk" / "kept", 1)


class Engine:
    """What `Checkpoints` needs: something that saves."""

    seed = 1

    def save_checkpoint(self, path, extra=None, *, wait=True):
        return checkpoint.save(path, state(self.seed), {"seed": self.seed})


def test_training_goes_on_after_a_failed_save_and_the_next_one_is_due_soon(tmp_path, monkeypatch):
    said: list[str] = []
    with full(tmp_path / "disk") as words, Checkpoints(Engine(), tmp_path / "disk", report=said.append) as checkpoints:
        folder, ballast = tmp_path / "disk", tmp_path / "disk" / "ballast"
        if (folder / "kept").exists():
            ballast = None
        else:
            ballast.write_bytes(bytes(1_800_000))
        checkpoints.save(1)
        assert not checkpoints.due()
        with pytest.raises(CheckpointError):
            checkpoints.finish()
        assert said == [f"The checkpoint {folder / 'checkpoint-1'} could not be written: {words}."]
        later = time.monotonic() + 61
        monkeypatch.setattr("jzero.checkpoint.run.folder.time.monotonic", lambda: later)
        assert checkpoints.due()
        if ballast is not None:
            ballast.unlink()
            checkpoints.save(1)
            checkpoints.finish()
            assert not checkpoints.due()
            assert_is(folder, 1)


def test_a_vanished_folder_is_made_again(tmp_path):
    said: list[str] = []
    with Checkpoints(Engine(), tmp_path / "run", report=said.append) as checkpoints:
        checkpoints.save(1)
        checkpoints.finish()
        shutil.rmtree(tmp_path / "run")
        checkpoints.save(2)
        checkpoints.finish()
        assert_is(tmp_path / "run", 1)
        shutil.rmtree(tmp_path / "run")
        (tmp_path / "run").write_text("in the way")
        checkpoints.save(3)
        assert said == [f"The checkpoint {tmp_path / 'run' / 'checkpoint-3'} could not be written: Not a directory."]


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory):
    path = tmp_path_factory.mktemp("undamaged") / "c"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jzero.checkpoint.format.header.SMALL_FILE_BYTES", 10_000)  # the data files count as large ones
        save(path, 1)
    return path


@pytest.fixture
def copy(undamaged, tmp_path):
    """A checkpoint to damage."""
    return Path(shutil.copytree(undamaged, tmp_path / "c"))


def largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 4
    file.write_bytes(content)


def damaged(path: Path) -> str:
    with pytest.raises(DamagedCheckpointError) as error:
        checkpoint.load(path, state(0))
    return str(error.value)


def test_a_flipped_bit_is_named_by_leaf_and_file(copy):
    file = largest(copy)
    flip(file, file.stat().st_size // 2)
    name = file.relative_to(copy)
    message = damaged(copy)
    assert message.startswith(f"The checkpoint {copy} is damaged: ")
    assert str(name) in message
    assert ("a has other values" in message) != ("b has other values" in message)


def test_every_file_that_is_cut_short_or_gone_is_named(copy, undamaged):
    for original in [path for path in undamaged.rglob("*") if path.is_file() and path.name != "jzero.json"]:
        name = original.relative_to(undamaged)
        size = original.stat().st_size
        if size:
            (copy / name).write_bytes(original.read_bytes()[:-1])
            assert f"is damaged: {name} is {size - 1} bytes long instead of {size}" in damaged(copy)
        (copy / name).unlink()
        assert f"is damaged: {name} is missing" in damaged(copy)
        shutil.copy(original, copy / name)
    assert_is(copy, 1)


def test_a_flipped_bit_in_a_small_file_is_named(copy):
    for file in [path for path in copy.rglob("*") if path.is_file() and 0 < path.stat().st_size < 10_000]:
        before = file.read_bytes()
        flip(file, len(before) // 2)
        if file.name == "jzero.json":
            assert "is damaged: jzero.json cannot be read" in damaged(copy)
        else:
            assert f"is damaged: {file.relative_to(copy)} has other contents than were written" in damaged(copy)
        file.write_bytes(before)
    assert_is(copy, 1)


def test_what_a_cut_file_holds_is_named(copy):
    file = largest(copy)
    with file.open("r+b") as opened:
        opened.truncate(100)
    message = damaged(copy)
    assert "it holds " in message
    assert "use an older checkpoint" in message


def test_a_header_that_is_not_one(copy):
    header = copy / "jzero.json"
    for text in ("", "[]", '{"content": {}}', '{"crc32": 1, "content": {"format": 2}}'):
        header.write_text(text)
        assert "is damaged: jzero.json cannot be read" in damaged(copy)
    header.unlink()
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        checkpoint.load(copy, state(0))
