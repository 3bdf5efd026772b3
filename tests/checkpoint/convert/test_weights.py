"""Weights that others wrote: the index decides, what contradicts itself is a sentence, and nothing in a file is run."""

import io
import json
import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jzero.checkpoint.convert.importing import import_weights, read_params, read_rules
from jzero.errors import CheckpointError

TREE = {"a": np.zeros((2, 2), np.float32), "b": np.zeros(3, np.float32)}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"


def full(value, *shape):
    return np.full(shape, value, np.float32)


def read(path):
    return {name: x.ravel().tolist() for name, x in read_params(path, TREE).items()}


def raw(folder, header, n_bytes, length=None):
    """A file with this header, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + bytes(n_bytes))
    return file


@pytest.fixture
def folder(tmp_path):
    """Two shards; the second holds an older copy of what the index says is in the first."""
    save_file({"a": full(1, 2, 2)}, tmp_path / ONE)
    save_file({"a": full(-99, 2, 2), "b": full(2, 3)}, tmp_path / TWO)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": ONE, "b": TWO}}))
    return tmp_path


def test_the_index_decides_which_shard_an_array_comes_from(folder):
    assert read(folder) == read(folder / INDEX) == {"a": [1] * 4, "b": [2] * 3}


def test_shards_may_be_links_as_in_hugging_faces_cache(folder, tmp_path_factory):
    blob = tmp_path_factory.mktemp("blobs") / "0123abc"
    (folder / ONE).rename(blob)
    (folder / ONE).symlink_to(blob)
    assert read(folder)["a"] == [1] * 4


def test_a_whole_file_beside_an_index_of_others_is_said(folder):
    save_file({"a": full(7, 2, 2), "b": full(7, 3)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"holds model\.safetensors and model\.safetensors\.index\.json, which"):
        read(folder)
    assert read(folder / "model.safetensors")["a"] == [7] * 4
    (folder / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys("ab", "model.safetensors")}))
    assert read(folder)["a"] == [7] * 4


def test_what_an_index_does_not_list_is_said(folder):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": TWO}}))
    with (
        pytest.warns(UserWarning, match=r"does not list b of its files: not read\.$"),
        pytest.raises(CheckpointError, match=r"missing in it \(b float32\[3\]\)"),
    ):
        read(folder)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        ({"weight_map": {"a": ONE, "b": ONE}}, f"says that b is in {ONE}, which does not hold it."),
        ({"weight_map": {}}, "cannot be read as an index of files: `weight_map` lists nothing."),
        ({"weight_map": {"a": 5}}, "cannot be read as an index of files: `weight_map.a`: input should be a valid str"),
        ({"weight_map": ["a"]}, "cannot be read as an index of files: `weight_map`: input should be a valid dict"),
        ({}, "cannot be read as an index of files: `weight_map`: field required."),
        ([], "cannot be read as an index of files: input should be a valid dict"),
        ("{", "cannot be read as an index of files: it is no JSON at line 1, column 2."),
        ("[" * 10**6, "cannot be read as an index of files: its lists and objects lie too deep in each other."),
        (f'{{"weight_map": {{"a": "{ONE}", "a": "{TWO}"}}}}', "as an index of files: it has 'a' twice."),
        ({"weight_map": {"a": "../x.safetensors"}}, "it names '../x.safetensors', which is no file inside its folder."),
        ({"weight_map": {"a": "/dev/zero"}}, "it names '/dev/zero', which is no file inside its folder."),
        ({"weight_map": {"a": INDEX}}, f"it names '{INDEX}', which is an index itself."),
        ({"weight_map": {"a": "gone.safetensors"}}, "gone.safetensors cannot be read as safetensors: No such file"),
    ],
)
@pytest.mark.parametrize("kind", ["model.safetensors", "pytorch_model.bin"])  # what their files are, these do not tell
def test_a_wrong_index_is_a_sentence(folder, index, says, kind):
    (folder / INDEX).unlink()
    (folder / f"{kind}.index.json").write_text(index if isinstance(index, str) else json.dumps(index))
    with pytest.raises(CheckpointError) as error:
        read(folder)
    assert says in str(error.value)


def header(a=(0, 16), b=(16, 28), shape=(2, 2), dtype="F32"):
    return {
        "a": {"dtype": dtype, "shape": shape, "data_offsets": a},
        "b": {"dtype": "F32", "shape": [3], "data_offsets": b},
    }


@pytest.mark.parametrize(
    ("head", "n_bytes", "says"),
    [
        (header((0, 8), (8, 20)), 20, "a, F32[2, 2], needs 16 bytes and is given 8."),
        (header((0, 16), (28, 16)), 28, "b, F32[3], needs 12 bytes and is given -12."),
        (header((-16, 0), (0, 12)), 12, "`a.data_offsets.0`: input should be greater than or equal to 0."),
        (header((0, 16), (4, 16)), 16, "b begins at byte 4 of the data, and what lies before it ends at 16."),
        (header((0, 16), (20, 32)), 32, "b begins at byte 20 of the data, and what lies before it ends at 16."),
        (header((4, 20), (20, 32)), 32, "a begins at byte 4 of the data, and what lies before it ends at 0."),
        (header(), 40, "it holds 40 bytes of data instead of 28."),
        (header(), 12, "it holds 12 bytes of data instead of 28."),
        (header(shape=[-2, -2]), 28, "`a.shape.0`: input should be greater than or equal to 0."),
        (header(shape=[True, 4]), 28, "`a.shape.0`: input should be a valid integer."),
        (header(shape="22"), 28, "`a.shape`: input should be a valid list."),
        (header(shape=[10**30]), 28, f"a, F32[{10**30}], needs {4 * 10**30} bytes and is given 16."),
        (header(dtype="F33"), 28, "a is of dtype F33, which jzero does not read."),
        (header(dtype=None), 28, "`a.dtype`: input should be a valid string."),
        (header(a=(0, 8, 16)), 28, "`a.data_offsets`: tuple should have at most 2 items"),
        ({"a": {"dtype": "F32"}}, 28, "`a.shape`: field required."),
        ({"a": 5}, 28, "`a`: input should be a valid dict"),
        ({"__metadata__": {"x": 1}, **header()}, 28, "`x`: input should be a valid string."),
        ({"__metadata__": [], **header()}, 28, "input should be a valid dict"),
        ([], 0, "input should be a valid dict"),
        (b'{"a": 1, "a": 2}', 0, "it has 'a' twice."),
        (b"\xff\xfe", 0, "it is not UTF-8 text."),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, 0, "its lists and objects lie "),
        (b'{"a": ' + b"9" * 5000 + b"}", 0, "a number in it has thousands of digits."),
    ],
)
def test_a_header_that_contradicts_itself_is_a_sentence(tmp_path, head, n_bytes, says):
    file = raw(tmp_path, head, n_bytes)
    with pytest.raises(CheckpointError) as error:
        read(tmp_path)
    assert str(error.value).startswith(f"{file} cannot be read as safetensors: {says}")


@pytest.mark.parametrize(
    ("length", "size", "says"),
    [
        (2**63, 100, "it ends inside its header."),
        (10**9, 2 * 10**9, "its header has 1000000000 bytes, and the format allows 100000000."),
    ],
)
def test_a_huge_header_is_not_read(tmp_path, length, size, says):
    file = raw(tmp_path, {}, 0, length)
    os.truncate(file, size)  # of holes
    with pytest.raises(CheckpointError) as error:
        read(tmp_path)
    assert str(error.value).endswith(says)


@pytest.mark.parametrize("name", ["model.safetensors", "model.npz", INDEX])
@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_is_no_file_is_not_waited_for(tmp_path, name, what):
    place = tmp_path / name
    {
        "pipe": lambda: os.mkfifo(place),
        "device": lambda: place.symlink_to("/dev/zero"),
        "folder": place.mkdir,
    }[what]()
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read as .*: it is a (named )?{what}, not a file\.$"):
        read(tmp_path)


def npz(file, header, content, compressed=False):
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(member, header)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        archive.writestr("a.npy", member.getvalue() + content)


def test_npz_comes_bit_for_bit_in_every_order_and_compression(tmp_path):
    a = np.asfortranarray(np.arange(4, dtype=np.float32).reshape(2, 2))
    np.savez_compressed(tmp_path / "model.npz", a=a, b=full(2, 3))
    assert read(tmp_path) == {"a": [0, 1, 2, 3], "b": [2] * 3}


def test_a_zip_bomb_is_not_unpacked_before_names_and_shapes_are_known(tmp_path):
    zeros = 2**27
    head = {"descr": "<f4", "fortran_order": False, "shape": (zeros // 4,)}
    npz(tmp_path / "model.npz", head, bytes(zeros), compressed=True)
    import tracemalloc

    tracemalloc.start()
    with pytest.raises(CheckpointError, match=r"a is float32\[33554432\] there and float32\[2,2\] here"):
        read(tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("head", "n_bytes", "says"),
    [
        ({"descr": "<f4", "fortran_order": False, "shape": (5,)}, 16, "a.npy has 144 bytes and needs 148."),
        ({"descr": "<f4", "fortran_order": False, "shape": (-5,)}, 16, "an array has the shape (-5,)."),
        ({"descr": "|O", "fortran_order": False, "shape": (1,)}, 16, "of dtype object, which jzero does not read."),
        ({"descr": ">f4", "fortran_order": False, "shape": (4,)}, 16, "of dtype >f4, which jzero does not read."),
    ],
)
def test_an_npz_that_contradicts_itself_is_a_sentence(tmp_path, head, n_bytes, says):
    npz(tmp_path / "model.npz", head, bytes(n_bytes))
    with pytest.raises(CheckpointError) as error:
        read(tmp_path)
    assert says in str(error.value)


def test_values_that_do_not_fit_are_refused(tmp_path):
    save_file({"a": np.array([[1, 2], [3, 7e4]], np.float32), "b": full(1, 3)}, tmp_path / "model.safetensors")
    assert read(tmp_path)["a"][3] == 7e4
    halves = {"a": np.zeros((2, 2), np.float16), "b": np.zeros(3, ml_dtypes.bfloat16)}
    with pytest.raises(CheckpointError, match=r"^a of .* cannot be read: 70000\.0 is too large for float16\.$"):
        read_params(tmp_path, halves)
    assert read_params(tmp_path, {**halves, "a": TREE["a"]})["b"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ([{"from": "(.*)", "to": r"\2"}], "cannot be used: invalid group reference 2"),
        ([{"from": ".*", "to": "x"}], "makes 'x' of both 'a' and 'b'."),
        ([{"from": "("}], "is no rule with the keys from, to and transpose: missing ), unterminated subpattern"),
        ([{"from": 3}], "is no rule with the keys from, to and transpose: `from`: input should be a valid string"),
        ([{"to": "x"}], "is no rule with the keys from, to and transpose: `from`: field required"),
        ([{"from": "x", "transpose": "yes"}], "`transpose`: input should be a valid boolean"),
        ([{"from": "x", "too": "y"}], "`too`: extra inputs are not permitted"),
        ([5], "is no rule with the keys from, to and transpose: input should be a valid dict"),
    ],
)
def test_a_wrong_map_of_names_is_a_sentence(folder, rules, says):
    with pytest.raises(CheckpointError) as error:
        read_params(folder, TREE, rules)
    assert says in str(error.value)


@pytest.mark.parametrize("text", ["{}", "5", "null", '"rules"', "[" * 10**5, '[{"from": "("}]', "[5]", "\ud800"])
def test_a_file_that_is_no_map_of_names_is_a_sentence(tmp_path, text):
    (tmp_path / "names.json").write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(CheckpointError, match=r"names\.json cannot be read as a map of names: .*\.$"):
        read_rules(tmp_path / "names.json")


@pytest.mark.parametrize("facts", ['{"model": "gpt"}', '{"model": [1]}', "5", "[" * 10**5])
def test_a_model_that_is_none_is_not_taken_from_a_file(tmp_path, facts):
    save_file(TREE, tmp_path / "model.safetensors", {"jzero": facts})
    with pytest.raises(CheckpointError, match="does not say which model it is of; give its run file"):
        import_weights(tmp_path, tmp_path / "c")


class Runs:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_no_code_of_an_npz_is_run(tmp_path):
    ran = tmp_path / "ran"
    np.savez(tmp_path / "model.npz", a=np.array([Runs(ran)], object), b=full(1, 3))
    with pytest.raises(CheckpointError, match="of dtype object, which jzero does not read"):
        read(tmp_path)
    (tmp_path / "model.npz").write_bytes(pickle.dumps(Runs(ran)))
    with pytest.raises(CheckpointError, match="cannot be read as npz: File is not a zip file"):
        read(tmp_path)
    assert not ran.exists()
    pickle.loads(pickle.dumps(Runs(ran)))
    assert ran.exists(), "it would have been"
