"""`jzero plan`: it plans what `jzero train` would run, teaches, and refuses in one sentence."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jzero import models
from jzero.cli import app
from jzero.config import load_run

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "configs" / "demo.json")
SMALL = ("model.d_model=32", "model.n_layer=1", "model.seq_len=16", "data.seq_len=16")


def run(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "80", "TERM": "dumb"})


def as_json(*arguments: str):
    result = run(*arguments, "--closed-form", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_demo_is_planned():
    result = run(DEMO, *SMALL, "--closed-form", "--stages", "0,3")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    for text in ("parameters on 8 h100-80g", "3 opt+par", "Take stage 0", "    deepspeed.zero_optimization.stage=0\n"):
        assert text in result.stdout
    assert "compiled" not in result.stdout


def test_its_overrides_make_the_recommended_run():
    # Logits of 262,144 tokens do not fit 24 GB; those of 131,072 do, and there is nothing that a stage could divide.
    large = (*SMALL, "model.vocab_size=32768", "training_arguments.per_device_train_batch_size=16384")
    cluster = ("--gpu", "rtx4090-24g", "--gpus", "4", "--stages", "0")
    content = as_json(DEMO, *large, *cluster)
    assert content["cluster"]["gpus_per_node"] == 4
    chosen, base = content["recommendation"]["setting"], content["base"]
    assert (base["stage"], base["micro_batch"], base["accumulation"]) == (3, 16384, 1)
    assert chosen["micro_batch"] < 16384
    assert chosen["micro_batch"] * chosen["accumulation"] == 16384
    assert [row["fits"] for row in content["rows"]] == [False, True]
    config = load_run(DEMO, [*large, *content["recommendation"]["overrides"]])
    resolved = config.deepspeed.resolve(world=4, training_arguments=config.training_arguments, num_training_steps=9)
    assert resolved.zero_optimization.stage == chosen["stage"]
    assert resolved.train_micro_batch_size_per_gpu == chosen["micro_batch"]
    assert resolved.gradient_accumulation_steps == chosen["accumulation"]
    assert resolved.train_batch_size == 4 * 16384
    again = as_json(DEMO, *large, *content["recommendation"]["overrides"], *cluster)
    assert again["rows"][0]["bytes"] == content["rows"][1]["bytes"]
    assert again["recommendation"]["changes"] == {}


def test_overlapped_micro_batches_make_it_an_estimate():
    scanned = (*SMALL, "model.scan_layers=true", "training_arguments.gradient_accumulation_steps=2")
    rows = as_json(DEMO, *scanned, "--stages", "2,3")["rows"]
    estimated = {(row["stage"], row["offload"]): row["estimated"] for row in rows}
    assert estimated.pop((2, "nothing")) is False
    assert all(estimated.values())


def test_rematerialisation_is_the_last_resort():
    deep = (*SMALL, "model.n_layer=24", "model.scan_layers=true", "training_arguments.per_device_train_batch_size=1")
    long = ("model.seq_len=16384", "data.seq_len=16384", "model.vocab_size=256")
    content = as_json(DEMO, *deep, *long, "--gpu", "a100-40g", "--gpus", "2", "--stages", "0")
    assert content["recommendation"]["setting"]["remat"]
    assert content["recommendation"]["overrides"] == ["deepspeed.zero_optimization.stage=0", "model.remat=true"]
    assert models.build(load_run(DEMO, [*deep, *long, "model.remat=true"]).model)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere.json"], "nowhere.json"),
        ([DEMO, "--gpu", "h1000"], "No GPU is named 'h1000'; known are"),
        ([DEMO, "--gpus", "12"], "12 GPUs do not fill nodes of 8; say with --nodes"),
        ([DEMO, "--gpus", "8", "--nodes", "3"], "8 GPUs cannot be shared equally by 3 nodes"),
        ([DEMO, "--stages", "2,x"], "--stages 2,x: write numbers"),
        ([DEMO, "--stages", "5"], "stages 5: give one or more"),
        ([DEMO, "--closed-form", "--compile-all"], "exclude each other"),
        ([DEMO, "model.family=vit"], "error: "),
        ([DEMO, "deepspeed.zero_optimization.stag=1"], "did you mean `stage`"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_teaches_by_examples():
    text = run("--help").output
    for word in ("jzero plan configs/demo.json", "--gpus 64", "--compile-all", "model.d_model=4096", "jq"):
        assert word in text
