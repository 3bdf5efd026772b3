"""Files of PyTorch, written by it: both formats, tensors alone, and nothing in them is run. Skipped without PyTorch."""

import os
import pickle
import zipfile
from collections import OrderedDict

import numpy as np
import pytest

from jzero.checkpoint.convert.importing import read_params
from jzero.errors import CheckpointError

torch = pytest.importorskip("torch")
TREE = {"a": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)}


def tensors():
    return OrderedDict(a=torch.arange(6.0).reshape(2, 3), b=torch.ones(3, dtype=torch.bfloat16))


class Runs:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "older format"])
@pytest.mark.parametrize("made", [lambda x: x, torch.nn.Parameter, lambda x: x.T.contiguous().T])
def test_both_formats_are_read(tmp_path, archive, made):
    weights = {name: made(x) if x.ndim > 1 else x for name, x in tensors().items()}
    torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=archive)
    read = read_params(tmp_path, TREE)
    np.testing.assert_array_equal(read["a"], np.arange(6).reshape(2, 3))
    np.testing.assert_array_equal(read["b"], np.ones(3))


@pytest.mark.parametrize("archive", [True, False], ids=["archive", "older format"])
def test_no_code_is_run_and_no_advice_to_run_it_is_passed_on(tmp_path, archive):
    file = tmp_path / "pytorch_model.bin"
    torch.save({**tensors(), "c": Runs(tmp_path / "ran")}, file, _use_new_zipfile_serialization=archive)
    with pytest.raises(CheckpointError) as error:
        read_params(tmp_path, TREE)
    assert str(error.value).startswith(f"{file} cannot be read as a torch state dict: it holds more than tensors")
    assert "weights_only" not in str(error.value)
    file.write_bytes(pickle.dumps(Runs(tmp_path / "ran"), protocol=2))
    with pytest.raises(CheckpointError, match=r"torch\.save did not write it, or not all"):
        read_params(tmp_path, TREE)
    assert not (tmp_path / "ran").exists()


def compressed(file):
    torch.save(tensors(), file)
    with zipfile.ZipFile(file) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def cut(file):
    torch.save(tensors(), file)
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (compressed, "is compressed, which torch.save does not do."),
        (cut, "torch.save did not write it, or not all of it is there."),
        (lambda file: file.write_text("text"), "torch.save did not write it, or not all of it is there."),
        (os.mkfifo, "it is a named pipe, not a file."),
        (lambda file: torch.save({"model": tensors()}, file), "'model' in it is a OrderedDict, and only tensors by "),
        (lambda file: torch.save([1], file), "it holds a list, not tensors by name."),
        (lambda file: torch.save({"a": torch.eye(2).to_sparse()}, file), "a is a float32 tensor (torch.sparse_coo), "),
        (lambda file: torch.save({"a": torch.eye(2) + 0j}, file), "a is a complex64 tensor (torch.strided), which"),
    ],
)
def test_anything_else_is_a_sentence(tmp_path, write, says):
    write(tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError) as error:
        read_params(tmp_path, TREE)
    assert f"cannot be read as a torch state dict: {says}" in str(error.value) or says in str(error.value)
