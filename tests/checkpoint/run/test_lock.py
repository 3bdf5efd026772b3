"""The lock file: never what a link leads to, and whatever it says of its holder."""

import os

import pytest

from jzero.checkpoint.run.lock import FolderLock
from jzero.errors import CheckpointError


def test_what_a_link_leads_to_is_not_written_over(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".lock").symlink_to("precious")
    with pytest.raises(CheckpointError, match=r"/\.lock is a link, and should be the file that keeps other runs away"):
        FolderLock(tmp_path / ".lock", tmp_path)
    assert (tmp_path / "precious").read_text() == "precious"
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="is a link"):
        FolderLock(tmp_path / ".lock", tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(CheckpointError, match=r"/\.lock is a named pipe, and should be the file"):
        FolderLock(tmp_path / ".lock", tmp_path)


def test_a_folder_in_its_place_is_the_systems_error(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        FolderLock(tmp_path / ".lock", tmp_path)


@pytest.mark.parametrize("says", ["", "5", "[1]", '{"pid": 1}', '{"pid": "a", "host": [], "since": 1}', "[" * 4000])
def test_a_holder_that_is_not_told_is_a_sentence(tmp_path, says):
    lock = FolderLock(tmp_path / ".lock", tmp_path)
    (tmp_path / ".lock").write_text(says)
    with pytest.raises(CheckpointError, match=r"is being written by another run \(unknown to its lock file\); stop it"):
        FolderLock(tmp_path / ".lock", tmp_path)
    lock.release()
