"""What an earlier run left is taken up whole or not at all, and every model of a process has files of its own."""

import os
import shutil

import numpy as np
import pytest

from jzero.errors import ConfigError, JzeroError, OffloadError
from jzero.offload.nvme import nvme_state
from jzero.offload.nvme.disk import ALIGNMENT, Disk, File, aligned_memory
from jzero.offload.nvme.folder import Folder
from jzero.offload.nvme.places import check_alone, open_folder
from tests.offload.nvme.case import batches, make_engine

N_BYTES = 2 * ALIGNMENT
DISK = Disk(ALIGNMENT, 2)


def section(value):
    memory = aligned_memory(ALIGNMENT)
    memory[:] = value
    return memory


def left(path, layout="layout", steps=(4, 5)):
    """A folder as a run leaves it whose generations have seen these steps."""
    folder = Folder(path, N_BYTES, layout)
    folder.replace()
    for at in (0, ALIGNMENT):
        DISK.write(folder.file, section(steps[0]), at)
    target = folder.begin(steps[0], lambda: {"count": np.int32(steps[0])})
    for at in (0, ALIGNMENT):
        DISK.write(target, section(steps[1]), at)
    folder.commit(steps[1], lambda: {"count": np.int32(steps[1])})
    folder.close()
    return path


def short(file):
    os.truncate(file, ALIGNMENT)


def link(file):
    file.rename(file.with_name("elsewhere"))
    file.symlink_to(file.with_name("elsewhere"))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda file: file.unlink(), "could not be read: No such file or directory"),
        (short, "has 4096 bytes instead of 8192"),
        (lambda file: os.truncate(file, 3 * ALIGNMENT), "has 12288 bytes instead of 8192"),
        (link, "is no file"),
    ],
)
def test_a_file_that_is_not_whole_does_not_count(tmp_path, damage, says):
    path = left(tmp_path / "run")
    damage(path / "generation-1")
    if (path / "generation-1").is_symlink():
        with pytest.raises(ConfigError, match="cannot be used: Too many levels of symbolic links"):
            Folder(path, N_BYTES, "layout")
        return
    folder = Folder(path, N_BYTES, "layout")
    assert folder.steps() == {0: 4}
    assert folder.lost == [f"{path / 'generation-1'} {says}"]
    folder.close()


@pytest.mark.parametrize("record", [b"", b"no npz", b"PK\5\6" + bytes(18), None])
def test_a_record_that_cannot_be_read_does_not_count(tmp_path, record):
    path = left(tmp_path / "run")
    file = path / "generation-1.whole.npz"
    file.unlink()
    os.mkfifo(file) if record is None else file.write_bytes(record)
    folder = Folder(path, N_BYTES, "layout")
    assert folder.steps() == {0: 4}
    assert folder.lost[0].startswith(f"{file} could not be read: ")
    folder.close()


@pytest.mark.parametrize("what", ["step", "layout", "sums"])
def test_a_record_of_other_types_does_not_count(tmp_path, what):
    path = left(tmp_path / "run")
    file = path / "generation-1.whole.npz"
    arrays = {**np.load(file), what: np.array([1.5, 2.5])}
    np.savez(file, **arrays)
    folder = Folder(path, N_BYTES, "layout")
    assert (folder.steps(), len(folder.lost)) == ({0: 4}, 1)
    folder.close()


@pytest.mark.parametrize("offset", [0, ALIGNMENT + 17])
def test_what_is_not_what_was_written_is_found_when_it_is_read(tmp_path, offset):
    path = left(tmp_path / "run")
    with (path / "generation-1").open("r+b") as file:
        file.seek(offset)
        file.write(bytes([6]))
    folder = Folder(path, N_BYTES, "layout")
    folder.replace()
    assert folder.adopt(5) == {"count": 5}
    memory = aligned_memory(ALIGNMENT)
    whole, damaged = (ALIGNMENT, 0) if offset < ALIGNMENT else (0, ALIGNMENT)
    DISK.read(folder.file, memory, whole)
    assert (memory == 5).all()
    with pytest.raises(OffloadError, match=rf"/generation-1 is damaged: the 4096 bytes at {damaged} are not what was"):
        DISK.read(folder.file, memory, damaged)
    folder.disown()
    assert folder.current == 0
    folder.close()


def test_zeros_and_pages_in_another_order_are_found_while_training(tmp_path):
    file, memory = File(tmp_path / "file", N_BYTES), aligned_memory(N_BYTES)
    memory[:] = np.random.default_rng(0).integers(0, 256, N_BYTES)
    for other in (np.zeros(N_BYTES, np.uint8), np.roll(memory, ALIGNMENT)):
        DISK.write(file, memory, 0)
        (tmp_path / "file").write_bytes(other.tobytes())
        with pytest.raises(OffloadError, match="is damaged"):
            DISK.read(file, aligned_memory(N_BYTES), 0)
    file.close()


def test_each_model_of_a_process_has_a_folder_and_finds_it_again(tmp_path):
    (tmp_path / "jzero").mkdir()
    left(tmp_path / "jzero" / "process-0", "actor")
    left(tmp_path / "jzero" / "process-0-model-2", "critic")
    critic, actor, third = (open_folder(str(tmp_path), N_BYTES, name) for name in ("critic", "actor", "third"))
    assert [folder.path.name for folder in (critic, actor, third)] == [
        "process-0-model-2",
        "process-0",
        "process-0-model-3",
    ]
    assert [folder.steps() for folder in (critic, actor, third)] == [{0: 4, 1: 5}, {0: 4, 1: 5}, {}]
    for folder in (critic, actor, third):
        check_alone(folder)
        folder.close()


def test_which_of_two_alike_is_meant_is_not_guessed(tmp_path):
    (tmp_path / "jzero").mkdir()
    for name in ("process-0", "process-0-model-2"):
        left(tmp_path / "jzero" / name)
    first = open_folder(str(tmp_path), N_BYTES, "layout")
    with pytest.raises(OffloadError, match=r"/process-0 and .*/process-0-model-2 both hold a state of such a model"):
        check_alone(first)
    second = open_folder(str(tmp_path), N_BYTES, "layout")
    check_alone(first)
    first.close()
    second.close()


def test_a_constructor_that_fails_leaves_the_folder_free(tmp_path, monkeypatch):
    for broken in ("Store", "Disk"):
        with monkeypatch.context() as patched:
            patched.setattr(nvme_state, broken, lambda *a, **k: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                make_engine(tmp_path)
        Folder(tmp_path / "jzero" / "process-0", N_BYTES, "layout").close()
    with monkeypatch.context() as patched:
        patched.setattr(nvme_state.NvmeState, "_write", lambda *a: 1 / 0)
        with pytest.raises(ZeroDivisionError) as kept:  # and with it, all that its frames hold
            make_engine(tmp_path)
    Folder(tmp_path / "jzero" / "process-0", N_BYTES, "layout").close()
    del kept
    with pytest.raises(JzeroError, match="no folder"):
        make_engine(tmp_path / "nowhere")


def test_two_models_train_side_by_side_and_a_damaged_state_is_not_taken_up(tmp_path):
    first, second = make_engine(tmp_path), make_engine(tmp_path, seed=1)
    one, two = batches(2)
    losses = [[float(engine.train_batch(batch)["loss"]) for batch in (one, two)] for engine in (first, second)]
    alone = make_engine(seed=1)
    assert losses[1] == pytest.approx([float(alone.train_batch(batch)["loss"]) for batch in (one, two)], rel=1e-6)
    assert losses[0] != losses[1]
    folder = first.store._folder
    path, newest = folder.path, folder.current
    del first, second, folder
    with (path / f"generation-{newest}").open("r+b") as file:
        file.write(bytes(4096))
    shutil.rmtree(path.with_name("process-0-model-2"))
    again = make_engine(tmp_path, seed=2)
    before = float(again.eval_batch(one)["loss"])
    with pytest.raises(OffloadError, match=r"is damaged: the \d+ bytes at 0 are not what was written"):
        again.recover()
    assert float(again.eval_batch(one)["loss"]) == before
    again.train_batch(one)  # its own new state is there all the same
