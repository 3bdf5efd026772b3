"""A trained model as a folder that others open: the bytes that came in go out, with all that lies beside them."""

import json
import shutil

import jax
import numpy as np
import pytest
from typer.testing import CliRunner

from jzero.checkpoint import save
from jzero.checkpoint.convert.hf_export import export_hf
from jzero.checkpoint.convert.weights import open_weights
from jzero.checkpoint.format import safetensors
from jzero.cli.program import app
from jzero.errors import CheckpointError
from jzero.models import from_hf
from tests.models.hf.common import GOLDEN, Form, engine_of
from tests.models.hf.test_golden import expected


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The folders of two families, one of them with a tokenizer and what else may lie there."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("gemma3", "bert"):
        shutil.copytree(GOLDEN / name, folder / name)
    (folder / "gemma3" / "tokenizer.json").write_text("{}")
    (folder / "gemma3" / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    (folder / "gemma3" / "code.py").write_text("raise SystemExit")
    return folder


@pytest.fixture(scope="module")
def saved(sources, tmp_path_factory):
    """Checkpoints of both, one scanned and one not, as they came in."""
    folder = tmp_path_factory.mktemp("saved")
    for name, form in {"gemma3": Form(True, 8, 3), "bert": Form(False, 1, 0)}.items():
        model = from_hf(sources / name, scan_layers=form.scan)
        engine = engine_of(model, expected(name)[0], form)
        engine.save_checkpoint(folder / name, {"model": {"hf": str(sources / name)}})
    return folder


@pytest.mark.parametrize("name", ["gemma3", "bert"])
def test_what_came_in_goes_out_bit_by_bit(sources, saved, tmp_path, name):
    export_hf(saved / name, tmp_path)
    before, after = (open_weights(folder).entries for folder in (sources / name, tmp_path))
    assert before.keys() == after.keys()
    for tensor, entry in before.items():
        assert (entry.shape, entry.dtype) == (after[tensor].shape, after[tensor].dtype)
        assert entry.read().tobytes() == after[tensor].read().tobytes(), tensor
    for file in ("config.json", *(["generation_config.json", "tokenizer_config.json"] if name == "gemma3" else [])):
        assert json.loads((tmp_path / file).read_text()) == json.loads((sources / name / file).read_text())
    assert not (tmp_path / "code.py").exists()
    assert safetensors.read_metadata(tmp_path / "model.safetensors") == {"format": "pt"}
    with pytest.raises(CheckpointError, match=r"config.json is there already; choose another folder"):
        export_hf(saved / name, tmp_path)  # which might be another model
    export_hf(saved / name, tmp_path, overwrite=True)


def test_in_several_files_and_another_dtype(sources, saved, tmp_path):
    command = ["export", str(saved / "gemma3"), "--hf", str(tmp_path), "--dtype", "fp32", "--max-shard-size", "40KB"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert len(files) > 2
    after = open_weights(tmp_path).entries
    assert index["metadata"]["total_size"] == sum(entry.nbytes for entry in after.values())
    for tensor, entry in open_weights(sources / "gemma3").entries.items():
        np.testing.assert_array_equal(entry.read().astype(np.float32), after[tensor].read())
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float32"
    assert "tokenizer.json" in result.output.replace("\n", "")


def test_a_folder_that_moved_is_named(sources, saved, tmp_path):
    shutil.copytree(sources / "bert", tmp_path / "moved")
    export_hf(saved / "bert", tmp_path / "out", source=tmp_path / "moved")
    assert open_weights(tmp_path / "out").entries


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["SAVED/gemma3", "--hf", "SOURCES/gemma3"], "is the folder that the model came from; choose another"),
        (["SAVED/gemma3", "--hf", "OUT", "--source", "SOURCES/bert"], "which a bert as"),
        (["SAVED/gemma3", "OUT", "--hf", "OUT"], "--hf names the folder to write to, in safetensors"),
        (["SAVED/gemma3"], "give the folder to write to as OUT, or with --hf"),
    ],
)
def test_what_cannot_be_is_a_sentence(sources, saved, tmp_path, arguments, says):
    places = {"SAVED": saved, "SOURCES": sources, "OUT": tmp_path / "out"}
    for name, place in places.items():
        arguments = [argument.replace(name, str(place)) for argument in arguments]
    result = CliRunner().invoke(app, ["export", *arguments])
    assert result.exit_code == 2
    assert says in result.output


def test_a_checkpoint_of_another_kind_is_a_sentence(saved, tmp_path):
    cpu = jax.devices("cpu")[0]
    save(tmp_path / "c", {"params/w": jax.device_put(np.ones(2, np.float32), cpu)}, {"step": 0}).wait()
    with pytest.raises(CheckpointError, match="does not say from which folder"):
        export_hf(tmp_path / "c", tmp_path / "out")
