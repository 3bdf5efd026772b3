"""`jzero plan`: it plans what `jzero train` would run, teaches, and refuses in one sentence."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jzero import models
from jzero.cli.program import app
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
    # Activations of 524,288 tokens do not fit 24 GB; those of 262,144 do, and there is nothing a stage could divide.
    large = (*SMALL, "model.d_model=1024", "training_arguments.per_device_train_batch_size=32768")
    cluster = ("--gpu", "rtx4090-24g", "--gpus", "4", "--stages", "0")
    content = as_json(DEMO, *large, *cluster)
    assert content["cluster"]["gpus_per_node"] == 4
    chosen, base = content["recommendation"]["setting"], content["base"]
    assert (base["stage"], base["micro_batch"], base["accumulation"]) == (3, 32768, 1)
    assert chosen["micro_batch"] < 32768
    assert chosen["micro_batch"] * chosen["accumulation"] == 32768
    assert [row["fits"] for row in content["rows"]] == [False, True]
    config = load_run(DEMO, [*large, *content["recommendation"]["overrides"]])
    resolved = config.deepspeed.resolve(world=4, training_arguments=config.training_arguments, num_training_steps=9)
    assert resolved.zero_optimization.stage == chosen["stage"]
    assert resolved.train_micro_batch_size_per_gpu == chosen["micro_batch"]
    assert resolved.gradient_accumulation_steps == chosen["accumulation"]
    assert resolved.train_batch_size == 4 * 32768
    again = as_json(DEMO, *large, *content["recommendation"]["overrides"], *cluster)
    assert again["rows"][0]["bytes"] == content["rows"][1]["bytes"]
    assert again["recommendation"]["changes"] == {}


def test_a_gpu_and_a_network_of_ones_own(tmp_path):
    gpu = tmp_path / "mine.toml"
    gpu.write_text('like = "h100-80g"\nmemory = 64_000_000_000\n')
    cluster = ("--gpus", "16", "--gpu", str(gpu), "--stages", "3")
    fast, slow = (as_json(DEMO, *SMALL, *cluster, *more) for more in ((), ("--network", "10gb-eth")))
    assert fast["cluster"]["memory"] == slow["cluster"]["memory"] == 64_000_000_000
    assert (fast["cluster"]["network"], slow["cluster"]["network"]) == ("400gb-ib", "10gb-eth")
    for a, b in zip(fast["rows"], slow["rows"], strict=True):
        assert a["time"]["low"] < a["time"]["high"]
        assert a["time"]["compute"] == b["time"]["compute"]
        assert a["time"]["exposed"] < b["time"]["exposed"]


def test_overlapped_micro_batches_make_it_an_estimate():
    scanned = (*SMALL, "model.scan_layers=true", "training_arguments.gradient_accumulation_steps=2")
    rows = as_json(DEMO, *scanned, "--stages", "2,3")["rows"]
    estimated = {(row["stage"], row["offload"]): row["estimated"] for row in rows}
    assert estimated.pop((2, "nothing")) is False
    assert all(estimated.values())


def test_rematerialisation_is_the_last_resort():
    deep = (*SMALL, "model.n_layer=48", "model.scan_layers=true", "training_arguments.per_device_train_batch_size=1")
    long = ("model.seq_len=65536", "data.seq_len=65536", "model.vocab_size=256", "model.d_model=512")
    content = as_json(DEMO, *deep, *long, "--gpu", "a100-40g", "--gpus", "2", "--stages", "0")
    assert content["recommendation"]["setting"]["remat"]
    assert content["recommendation"]["overrides"] == ["deepspeed.zero_optimization.stage=0", "model.remat=true"]
    assert models.build(load_run(DEMO, [*deep, *long, "model.remat=true"]).model)


def test_a_model_by_name_needs_no_run_file():
    content = as_json("--model", "gpt2-medium", "--gpus", "16", "--seq-len", "128", "--stages", "3", "model.n_layer=2")
    assert content["n_params"] == (50257 + 1024) * 1024 + 2 * (12 * 1024**2 + 13 * 1024) + 2 * 1024
    assert (content["base"]["micro_batch"], content["base"]["accumulation"]) == (1, 1)
    per_gpu = 4 * content["n_params"] / 16  # fp32 masters; AdamW has twice as much
    for part, n_bytes in (("parameters", per_gpu), ("optimizer_state", 2 * per_gpu)):
        assert content["rows"][0]["bytes"][part] == pytest.approx(n_bytes, rel=0.01)


def test_a_model_of_images_can_be_planned():
    content = as_json("--model", "vit-b-16", "--micro-batch", "4", "--stages", "0", "model.n_layer=1", "--gpus", "1")
    assert content["base"]["micro_batch"] == 4


def test_the_largest_batch_and_model(tmp_path):
    gpu = tmp_path / "small.toml"
    gpu.write_text('like = "h100-80g"\nmemory = 4_000_000\n')
    small = (DEMO, *SMALL, "model.scan_layers=true", "--gpu", str(gpu), "--stages", "0")
    (batch,), (model,) = as_json(*small, "--max-batch"), as_json(*small, "--largest-model")
    assert batch["fits"]
    assert batch["micro_batch"] > 4
    assert (model["fits"], model["micro_batch"]) == (True, 4)
    assert model["n_params"] > 1.5 * batch["n_params"]


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
        ([DEMO, "deepspeed.zero_optimization.stag=1"], "`zero_optimization.stage`, which it resembles"),
        ([], "nothing says what to plan: give a run file, such as configs/demo.json, or --model NAME; names are gpt2"),
        ([DEMO, "--model", "gpt2"], f"both the run file {DEMO} and --model gpt2 say what to plan"),
        (["--model", "gpt-2"], "model.size is 'gpt-2' (did you mean 'gpt2'?); known sizes"),
        (["--model", "gpt2", "--seq-len", "2048"], "data.seq_len 2048 is more than the model.seq_len 1024"),
        (["--model", "gpt2", "--max-batch", "--largest-model"], "exclude each other"),
        (["--model", "resnet50", "--largest-model"], "model.family 'resnet' has no width and depth"),
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
    examples = ("jzero plan configs/demo.json", "--gpus 64", "--compile-all", "model.d_model=4096", "jq")
    for word in (*examples, "--model llama-2-7b", "gpt3-175b"):
        assert word in text
