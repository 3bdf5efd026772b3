"""Exports come block by block to the same bits, leave nothing half written, and are never mixed with another one."""

import jax
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
        export(saved, tmp_path)
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_bytes() == before


def test_two_exports_are_not_mixed(saved, tmp_path):
    export(saved, tmp_path, max_shard_bytes=2000)
    with pytest.raises(CheckpointError, match=r"holds model-00001-of-\d+.safetensors of another export"):
        export(saved, tmp_path)
    export(saved, tmp_path, max_shard_bytes=2000)


def test_files_that_are_no_weights_are_a_sentence(saved, tmp_path):
    (file,) = export(saved, tmp_path / "whole", format="npz")
    (tmp_path / "cut.npz").write_bytes(file.read_bytes()[:500])
    with pytest.raises(CheckpointError, match=r"cut\.npz cannot be read as npz: File is not a zip file\.$"):
        import_weights(tmp_path / "cut.npz", tmp_path / "c")
    for facts in ("no JSON", "[1]"):
        safetensors.numpy.save_file({"a": np.ones(2)}, tmp_path / "a.safetensors", {"jzero": facts})
        with pytest.raises(CheckpointError, match="does not say which model it is of; give its run file"):
            import_weights(tmp_path / "a.safetensors", tmp_path / "c")
