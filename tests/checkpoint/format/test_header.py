"""Headers that others wrote: of the right form, about files of their own folder; and what is written can be read."""

import json
import os
import zlib
from pathlib import Path

import jax.numpy as jnp
import pytest

from jzero import checkpoint
from jzero.checkpoint.format import header
from jzero.checkpoint.format.header import Header
from jzero.errors import CheckpointError, DamagedCheckpointError


def make(folder, **changes):
    """A header with a right checksum, whatever it says."""
    content = {"format": header.FORMAT, "leaves": {}, "files": {}, "metadata": {}} | changes
    text = json.dumps({"saved_at": 1.5, "crc32": header._crc(content), "content": content})
    (folder / header.FILE).write_text(text)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "c"
    checkpoint.save(path, {"a": jnp.arange(6.0)}, {"step": 1}).wait()
    return path


LEAF = [[2], "float32", "00"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"leaves": []}, "`leaves`: input should be a valid dict"),
        ({"leaves": {"a": 5}}, "`leaves.a`: input should be a valid tuple"),
        ({"leaves": {"a": [[-1], "float32", ""]}}, "`leaves.a.0.0`: input should be greater than or equal to 0"),
        ({"leaves": {"a": [[2.5], "float32", ""]}}, "`leaves.a.0.0`: input should be a valid integer"),
        ({"leaves": {"a": [[True], "float32", ""]}}, "`leaves.a.0.0`: input should be a valid integer"),
        ({"leaves": {"a": [[2], "float33", ""]}}, "a is of dtype float33, which jzero does not know"),
        ({"leaves": {"a": [[2], "object", ""]}}, "a is of dtype object, which jzero does not know"),
        ({"leaves": {"a": [[2], 5, ""]}}, "`leaves.a.1`: input should be a valid string"),
        ({"leaves": {"a": [[2], "float32", None]}}, "`leaves.a.2`: input should be a valid string"),
        ({"files": {"/dev/zero": [5, None]}}, "it names '/dev/zero', which is no file inside its folder"),
        ({"files": {"../b": [5, None]}}, "it names '../b', which is no file inside its folder"),
        ({"files": {"x/../../b": [5, None]}}, "it names 'x/../../b', which is no file inside its folder"),
        ({"files": {"": [5, None]}}, "it names '', which is no file inside its folder"),
        ({"files": {"x": [-5, None]}}, "`files.x.0`: input should be greater than or equal to 0"),
        ({"files": {"x": ["5", None]}}, "`files.x.0`: input should be a valid integer"),
        ({"files": {"x": [10**12, 5]}}, "x has 1000000000000 bytes, too many for a checksum in the header"),
        ({"metadata": [1]}, "`metadata`: input should be a valid dict"),
    ],
)
def test_a_header_of_another_form_is_a_sentence(tmp_path, changes, says):
    with pytest.raises(DamagedCheckpointError) as error:
        header.read(make(tmp_path, **changes))
    start = f"The checkpoint {tmp_path} is damaged: {header.FILE} cannot be read ({says}"
    assert str(error.value).startswith(start)


@pytest.mark.parametrize("text", ["", "5", "[]", "{}", "null", "[" * 10**6, '{"crc32": "x", "content": {"format": 2}}'])
def test_a_file_that_is_no_header_is_a_sentence(tmp_path, text):
    (tmp_path / header.FILE).write_text(text)
    with pytest.raises(CheckpointError, match=rf"^The checkpoint {tmp_path} (is damaged: |has format None; this)"):
        header.read(tmp_path)
    assert header.age(tmp_path) is None


def test_another_format_is_said(tmp_path):
    with pytest.raises(CheckpointError, match=r"has format 9; this version of jzero reads format 2\.$"):
        header.read(make(tmp_path, format=9))


def test_what_is_no_file_is_not_opened(saved, tmp_path):
    content = json.loads((saved / header.FILE).read_text())["content"]
    make(tmp_path, leaves=content["leaves"], files={"arrays/a": [0, zlib.crc32(b"")], "arrays/b": [5, None]})
    (tmp_path / "arrays").mkdir()
    os.mkfifo(tmp_path / "arrays" / "a")
    (tmp_path / "arrays" / "b").symlink_to("/dev/zero")
    assert header.damaged_files(tmp_path, header.read(tmp_path)) == {
        "arrays/a": "cannot be read: it is a named pipe, not a file",
        "arrays/b": "cannot be read: it is a device, not a file",
    }


@pytest.mark.parametrize("name", ["arrays/manifest.ocdbt", "arrays/d/unlisted"])
def test_a_pipe_in_a_checkpoint_is_not_waited_for(saved, tmp_path, name):
    import shutil

    copy = Path(shutil.copytree(saved, tmp_path / "c"))
    (copy / name).unlink(missing_ok=True)
    (copy / name).parent.mkdir(exist_ok=True)
    os.mkfifo(copy / name)
    with pytest.raises(DamagedCheckpointError, match=rf"is damaged: {name} .*a named pipe, not a file; use an older"):
        checkpoint.load(copy, {"a": jnp.zeros(6)})


def test_keys_that_are_numbers_come_back_as_text(tmp_path):
    metadata = {"losses": {2: 0.5, 10: 0.25}, "none": {None: 1, True: 2}, "nan": float("nan")}
    header.write(tmp_path, Header({}, {}, metadata))
    read = header.read(tmp_path).metadata
    assert read["losses"] == {"2": 0.5, "10": 0.25}
    assert read["none"] == {"null": 1, "true": 2}


def deep(n):
    return {"a": deep(n - 1)} if n else 1


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"a": {1: 2, "1": 3}}, "it has '1' twice"),
        (deep(99), "its lists and objects lie more than 100 deep in each other"),
        (deep(900), "its lists and objects lie more than 100 deep in each other"),
        ({"a": object()}, "Object of type object is not JSON serializable"),
        ({"a": {(1, 2): 3}}, "keys must be str, int, float, bool or None, not tuple"),
        ([1], "`content.metadata`: input should be a valid dictionary"),
    ],
)
def test_metadata_that_could_not_be_read_again_is_refused_before_saving(tmp_path, metadata, says):
    with pytest.raises(CheckpointError) as error:
        checkpoint.save(tmp_path / "c", {"a": jnp.zeros(2)}, metadata)
    assert str(error.value) == f"The metadata of the checkpoint {tmp_path / 'c'} cannot be written as JSON: {says}."
    assert not list(tmp_path.iterdir())
