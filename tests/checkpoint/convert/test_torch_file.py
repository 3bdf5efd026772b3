"""Files of PyTorch, written by it: both formats, tensors alone, and nothing is run. `make test-torch` runs it."""

import importlib
import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from jzero.checkpoint.convert.importing import read_params
from jzero.errors import CheckpointError

pytestmark = pytest.mark.torch
TREE = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}


@pytest.fixture(autouse=True)
def torch():
    return importlib.import_module("torch")


def tensors(torch):
    return OrderedDict(a=torch.arange(6.0).reshape(2, 3), b=torch.ones(3, dtype=torch.bfloat16))


class Runs:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "older format"])
@pytest.mark.parametrize(
    "made", [lambda torch, x: x, lambda torch, x: torch.nn.Parameter(x), lambda torch, x: x.T.contiguous().T]
)
def test_both_formats_are_read(torch, tmp_path, archive, made):
    weights = {name: made(torch, x) if x.ndim > 1 else x for name, x in tensors(torch).items()}
    torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    read = read_params(tmp_path, TREE)
    np.testing.assert_array_equal(read["a"], np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(read["b"], np.ones(3))


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "older format"])
def test_no_code_is_run_and_no_advice_to_run_it_is_passed_on(torch, tmp_path, archive):
    file = tmp_path / "pytorch_model.bin"
    torch.save({**tensors(torch), "c": Runs(tmp_path / "ran")}, file, _use_new_zipfile_serialization=archive)
    with pytest.raises(CheckpointError) as error:
        read_params(tmp_path, TREE)
    assert str(error.value).startswith(f"{file} cannot be read as a torch state dict: it holds more than tensors")
    assert "weights_only" not in str(error.value)
    file.write_bytes(pickle.dumps(Runs(tmp_path / "ran"), protocol=2))
    with pytest.raises(CheckpointError, match=r"torch\.save did not write it, or not all"):
        read_params(tmp_path, TREE)
    assert not (tmp_path / "ran").exists()


def compressed(torch, file):
    torch.save(tensors(torch), file)
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def cut(torch, file):
    torch.save(tensors(torch), file)
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (compressed, "is compressed, which torch.save does not do."),
        (cut, "torch.save did not write it, or not all of it is there."),
        (lambda t, file: file.write_text("text"), "torch.save did not write it, or not all of it is there."),
        (lambda t, file: os.mkfifo(file), "it is a named pipe, not a file."),
        (
            lambda t, file: t.save({"model": tensors(t)}, file),
            "'model' in it is a OrderedDict, and only tensors by ",
        ),
        (lambda t, file: t.save([1], file), "it holds a list, not tensors by name."),
        (
            lambda t, file: t.save({"a": t.eye(2).to_sparse()}, file),
            "a is a float32 tensor (torch.sparse_coo)",
        ),
        (
            lambda t, file: t.save({"a": t.eye(2) + 0j}, file),
            "a is a complex64 tensor (torch.strided)",
        ),
    ],
)
def test_anything_else_is_a_sentence(torch, tmp_path, write, says):
    write(torch, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as error:
        read_params(tmp_path, TREE)
    assert says in str(error.value)
