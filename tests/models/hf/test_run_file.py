"""A run file that names a published model: trained from its weights, exported, and refused where it cannot be."""

import hashlib
import json
import shutil

import jax
import numpy as np
import pytest

from jzero.checkpoint.convert.hf_export import export_hf
from jzero.config import load_run
from jzero.errors import ConfigError
from jzero.models import build, from_hf
from jzero.sharding.mesh import make_mesh
from jzero.train.data import Corpus, load_corpus
from jzero.train.trainer import language_model, prepare, strange_tokens, train
from tests.models.hf.common import GOLDEN, by_path, read_alone


@pytest.fixture
def run_file(tmp_path):
    """A run file beside a folder with a model, for which there are bytes as tokens."""
    (tmp_path / "text.txt").write_text("".join(f"{i} squared is {i * i}. " for i in range(400)))
    shutil.copytree(GOLDEN / "qwen2", tmp_path / "model")
    arguments = {"max_steps": 2, "learning_rate": 0.01, "per_device_train_batch_size": 2}
    run = {
        "model": {"hf": "model", "vocab_size": 256, "remat": True},
        "data": {"source": "text", "files": ["text.txt"], "seq_len": 16, "validation_share": 0.2},
        "training_arguments": {**arguments, "output_dir": str(tmp_path / "out")},
        "deepspeed": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}},
    }
    (tmp_path / "run.json").write_text(json.dumps(run))
    return tmp_path / "run.json"


def test_a_run_trains_and_gives_the_model_back(run_file, tmp_path):
    run = prepare(load_run(run_file), base=tmp_path, mesh=make_mesh(jax.devices()[:2]))
    before = by_path(read_alone(from_hf(tmp_path / "model", vocab_size=256)))
    for name, x in by_path(run.engine.params).items():
        np.testing.assert_array_equal(x, before[name])
    assert isinstance(run.corpus, Corpus)
    assert "The text is read as bytes, and the weights of" in run.corpus.notes[0]
    result = train(run)
    export_hf(result.checkpoint, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["vocab_size"] == 256
    trained, back = by_path(run.engine.params), by_path(read_alone(from_hf(tmp_path / "back")))
    for name, x in trained.items():
        assert not np.array_equal(x, before[name]), name
        np.testing.assert_allclose(back[name], x, rtol=2**-8)


def test_a_path_is_relative_to_the_run_file(run_file, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    assert load_run(run_file).model["hf"] == str(tmp_path / "model")
    assert load_run(run_file, ["model.hf=/elsewhere"]).model["hf"] == "/elsewhere"
    assert load_run(run_file, ["model.hf=hub:a/b"]).model["hf"] == "hub:a/b"


def test_what_cannot_be_trained_on_text_is_a_sentence(run_file):
    with pytest.raises(ConfigError, match="classifies rows of text, and jzero train trains models that predict tokens"):
        language_model(load_run(run_file, [f"model.hf={GOLDEN / 'bert'}"]))
    with pytest.raises(ConfigError, match=r"model.vocab_size is 64; byte tokens need at least 256\."):
        language_model(load_run(run_file, [f'model={{"hf": "{GOLDEN / "llama"}"}}']))
    with pytest.raises(ConfigError, match="`model` must be an object with a `family`, such as"):
        load_run(run_file, ['model={"hf": 3}'])


def test_tokens_of_another_tokenizer_are_said(run_file, tmp_path):
    config = load_run(run_file)
    corpus = load_corpus(config.data, base=tmp_path)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    own = hashlib.sha256(b"{}").hexdigest()
    model, new = (build({**config.model, "weights": weights}) for weights in (True, False))
    said = {name: list(strange_tokens(model, corpus._replace(tokenizer=name))) for name in (None, own, "other")}
    assert "read as bytes" in said[None][0]
    assert said[own] == []
    assert "by another tokenizer than" in said["other"][0]
    assert list(strange_tokens(new, corpus)) == []
