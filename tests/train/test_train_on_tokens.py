"""Training on packed instruction data: the loss is that of what counts, and a resumed run is the same run."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from jzero.config import load_run
from jzero.errors import ConfigError
from jzero.models.losses import next_token_loss
from jzero.sharding.mesh import make_mesh
from jzero.train.trainer import Run, prepare, train
from tests.multiprocess.processes import Processes
from tests.train.data.bpe import save_tokenizer

MODEL = {"family": "llama", "vocab_size": 400, "seq_len": 32, "d_model": 16, "n_layer": 1, "n_head": 2}
RUN = {
    "model": MODEL,
    "data": {"source": "jsonl", "files": ["sft.jsonl"], "tokenizer": "model", "seq_len": 32, "validation_share": 0.2},
    "training_arguments": {
        "max_steps": 6,
        "save_steps": 3,
        "learning_rate": 0.01,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "lr_scheduler_type": "constant",
    },
    "deepspeed": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A run file and its data, of which an epoch has 11 rows, and a batch 8 on two devices."""
    folder = tmp_path_factory.mktemp("tokens")
    save_tokenizer(folder / "model")
    records = [{"prompt": f"{i} + {i} =", "completion": f" {2 * i}" + " and" * (i % 5)} for i in range(28)]
    (folder / "sft.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "run.json").write_text(json.dumps(RUN))
    return folder


def lines(out: Path) -> list[dict]:
    timed = ("tokens_per_second", "step_seconds", "model_tflops_per_device", "data_seconds", "run")
    read = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in timed} for line in read]


def prepared(folder: Path, out: Path, *overrides: str, n_devices: int = 2) -> Run:
    config = load_run(folder / "run.json", [*overrides, f"training_arguments.output_dir={out}"])
    return prepare(config, base=folder, mesh=make_mesh(jax.devices()[:n_devices]))


def test_a_resumed_run_is_the_same_run_and_validates_on_what_counts(folder, tmp_path):
    run = prepared(folder, tmp_path)
    assert 2 * run.corpus.train.n_windows < 3 * 8  # step 4 is in epoch 3
    result = train(run)
    whole = lines(tmp_path)
    assert whole[-2]["loss"] < whole[0]["loss"]
    train(run, resume=tmp_path / "checkpoint-3")
    assert lines(tmp_path) == whole

    model, batches = run.engine, run.corpus.validation
    rows = 2
    losses = [model.eval_batch(batches.batch(i, rows)) for i in range(max(1, batches.n_windows // rows))]
    counts = [weight_of(batches.batch(i, rows)) for i in range(len(losses))]
    expected = np.average([float(loss["loss"]) for loss in losses], weights=counts)
    assert result.metrics["validation_loss"] == pytest.approx(expected, rel=1e-6)
    assert result.unit == "token"


def weight_of(batch: dict[str, np.ndarray]) -> float:
    """What the loss itself says."""
    uniform = lambda tokens, **_: np.zeros((*tokens.shape, 400), np.float32)
    return float(next_token_loss(uniform, jax.tree.map(jax.numpy.asarray, batch)).weight)


def test_a_model_that_cannot_read_the_data_is_a_sentence(folder, tmp_path):
    for override, says in {
        "model.vocab_size=300": r"model\.vocab_size is 300; the tokenizer of data has 400 tokens",
        'model={"family": "lstm", "vocab_size": 400, "d_model": 8, "n_layer": 1}': "this model reads a row from its",
    }.items():
        with pytest.raises(ConfigError, match=says):
            prepared(folder, tmp_path, override)


@pytest.mark.full
def test_two_processes_and_then_one_are_the_run_of_one(folder, tmp_path):
    two, one = tmp_path / "two", tmp_path / "one"
    arguments = ["train", str(folder / "run.json"), f"training_arguments.output_dir={two}"]
    with Processes(["-m", "jzero", *arguments, "training_arguments.max_steps=3", "--devices=2"]) as processes:
        processes.succeed(180)
    train(prepared(folder, two, n_devices=4), resume=two / "checkpoint-3")
    train(prepared(folder, one, n_devices=4))
    losses = [{line["step"]: line["loss"] for line in lines(out) if "loss" in line} for out in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
