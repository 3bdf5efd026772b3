"""Exports come block by block to the same bits, leave nothing half written, and are never mixed with another one."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from jax.sharding import NamedSharding, PartitionSpec

from jzero import checkpoint
from jzero.checkpoint.convert.exporting import export
from jzero.checkpoint.convert.importing import import_weights
from jzero.checkpoint.format import arrays
from jzero.errors import CheckpointError, DamagedCheckpointError
from jzero.sharding.mesh import make_mesh

SPECS = {
    "rows": PartitionSpec("shard"),
    "columns": PartitionSpec(None, "shard"),
    "both": PartitionSpec("shard", "replica"),
    "whole": PartitionSpec(),
}


def values() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    leaves = {name: random.standard_normal((16, 8, 3), np.float32) for name in SPECS}
    others = {"scalar": np.float32(2.5), "empty": np.zeros((0, 4), np.float32), "bytes": np.arange(9, dtype=np.int8)}
    return {**leaves, **others}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint whose leaves are divided in every way, as (replica 2 x shard 4), and what it holds."""
    mesh = make_mesh(replica=2)
    put = lambda name, x: jax.device_put(x, NamedSharding(mesh, SPECS.get(name, PartitionSpec())))
    path = tmp_path_factory.mktemp("export") / "c"
    checkpoint.save(path, {"params": {name: put(name, x) for name, x in values().items()}}, {}).wait()
    return path


@pytest.mark.parametrize("format", ["safetensors", "npz"])
def test_every_division_gives_the_same_bits(saved, tmp_path, format):
    (file,) = export(saved, tmp_path, format=format)
    loaded = dict(np.load(file)) if format == "npz" else safetensors.numpy.load_file(file)
    assert loaded.keys() == values().keys()
    for name, x in values().items():
        assert (loaded[name].shape, loaded[name].dtype, loaded[name].tobytes()) == (x.shape, x.dtype, x.tobytes())


def test_a_large_leaf_is_rounded_in_parts(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("jzero.checkpoint.convert.exporting._AT_ONCE", 50)
    (file,) = export(saved, tmp_path, dtype="bf16")
    loaded = safetensors.numpy.load_file(file)
    for name in SPECS:
        assert loaded[name].tobytes() == values()[name].astype(ml_dtypes.bfloat16).tobytes()


def test_rows_are_read_as_they_were_divided(saved):
    for name in SPECS:
        blocks = list(arrays.read_in_blocks(saved, f"params/{name}"))
        assert np.concatenate(blocks).tobytes() == values()[name].tobytes()
        assert name == "columns" or len(blocks) >= 4


def test_a_failed_export_leaves_the_older_one(saved, tmp_path, monkeypatch):
    (file,) = export(saved, tmp_path)
    before = file.read_bytes()
    read = arrays.read_in_blocks
    monkeypatch.setattr(arrays, "read_in_blocks", lambda *leaf: (np.negative(block) for block in read(*leaf)))
    with pytest.raises(DamagedCheckpointError, match=r"is damaged: params/\w+: it has other values than were saved\."):
        export(saved, tmp_path, overwrite=True)
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == before


def test_two_exports_are_not_mixed(saved, tmp_path):
    export(saved, tmp_path, max_shard_bytes=2000)
    with pytest.raises(CheckpointError, match=r"holds model-00001-of-\d+.safetensors of another export"):
        export(saved, tmp_path, overwrite=True)
    export(saved, tmp_path, max_shard_bytes=2000, overwrite=True)


@pytest.mark.parametrize("format", ["safetensors", "npz"])
def test_weights_that_are_there_are_replaced_only_when_asked(saved, tmp_path, format):
    (file,) = export(saved, tmp_path, format=format)
    file.write_bytes(b"of somebody else")
    with pytest.raises(CheckpointError, match=rf"{file.name} is there already; choose another folder, or replace it"):
        export(saved, tmp_path, format=format)
    assert file.read_bytes() == b"of somebody else"
    export(saved, tmp_path, format=format, overwrite=True)
    assert file.read_bytes() != b"of somebody else"


def test_files_that_are_no_weights_are_a_sentence(saved, tmp_path):
    (file,) = export(saved, tmp_path / "whole", format="npz")
    (tmp_path / "cut.npz").write_bytes(file.read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"cut\.npz cannot be read as npz: File is not a zip file\.$"):
        import_weights(tmp_path / "cut.npz", tmp_path / "c")
    for facts in ("no JSON", "[1]"):
        safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "a.safetensors", {"jzero": facts})
        with pytest.raises(CheckpointError, match="does not say which model it is of; give its run file"):
            import_weights(tmp_path / "a.safetensors", tmp_path / "c")


def test_names_that_a_file_cannot_tell_apart_are_refused(tmp_path):
    one, two = jnp.ones(2), jnp.zeros(2)
    for leaves, format, says in (
        (
            {"a": {"b": one}, "a.b": two},
            "npz",
            r"params/a/b and params/a\.b of .* would both be exported as 'a\.b'; name",
        ),
        (
            {"__metadata__": one},
            "safetensors",
            r"'__metadata__' cannot be written: safetensors does not have an array of",
        ),
    ):
        checkpoint.save(tmp_path / "c", {"params": leaves}, {}).wait()
        with pytest.raises(CheckpointError, match=says):
            export(tmp_path / "c", tmp_path / "out", format=format)
        assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("name", ["", "/", "a/", "a//b", "..", "../x", ".zarray", "x/.zarray/y", "%2f", " "])
def test_odd_names_come_back(tmp_path, name):
    leaves = {"params": {name: jnp.arange(6.0), "b": jnp.ones(2)}}
    checkpoint.save(tmp_path / "c", leaves, {}).wait()
    loaded, _ = checkpoint.load(tmp_path / "c", jax.tree.map(jnp.zeros_like, leaves))
    (file,) = export(tmp_path / "c", tmp_path / "out")
    exported = safetensors.numpy.load_file(file)
    for x in (loaded["params"][name], exported[name.replace("/", ".")]):
        np.testing.assert_array_equal(x, np.arange(6))


def test_names_that_differ_by_a_slash_at_the_end_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"could not be written: 'params/a' and 'params/a/' are one name to it\."):
        checkpoint.save(tmp_path / "c", {"params": {"a": jnp.ones(2), "a/": jnp.zeros(2)}}, {}).wait()
    assert not list(tmp_path.iterdir())
    with pytest.raises(CheckpointError, match=r"^two arrays are both named 'params/a/b' in a checkpoint, where"):
        checkpoint.save(tmp_path / "c", {"params": {"a": {"b": jnp.ones(2)}, "a/b": jnp.zeros(2)}}, {})
