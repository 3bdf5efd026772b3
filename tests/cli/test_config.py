"""`jzero config`: what it shows agrees with `Config.resolve`, whatever kind of file it is given."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jzero.cli.program import app
from jzero.config import Config, TrainingArguments
from jzero.config.sources.load import read_object

CONFIGS = Path(__file__).parents[2] / "configs"
ARGUMENTS = {"learning_rate": 3e-4, "per_device_train_batch_size": 4, "bf16": True, "weight_decay": 0.1}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command on a file: one that exists, or the text of one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "args.json").write_text(json.dumps(ARGUMENTS))
    (tmp_path / "configs").symlink_to(CONFIGS)

    def run(file: str | dict, *options: str, name: str = "ds.json"):
        if not isinstance(file, str):
            file = json.dumps(file)
        if "\n" in file or file.startswith("{"):
            (tmp_path / name).write_text(file)
            file = name
        return CliRunner().invoke(app, ["config", file, *options], env={"COLUMNS": "80", "TERM": "dumb"})

    return run


def keys(result) -> dict[str, dict]:
    assert result.exit_code == 0, result.output
    return {key["path"]: key for key in json.loads(result.stdout)["keys"]}


def test_without_training_arguments_an_auto_is_open(run):
    result = run("configs/ds_stage3.json")
    assert result.exit_code == 0
    for row in (r"lr +\"auto\" +honoured +open", r"stage +3 +honoured +given"):
        assert re.search(row, result.stdout)
    assert "batch sizes are open" in result.stdout
    assert json.loads(run("configs/ds_stage3.json", "--json").stdout)["batch"] is None


def test_with_them_it_says_what_each_was_filled_from(run):
    result = run("configs/ds_stage2.json", "--training-arguments", "args.json", "--world", "64", "--json")
    found = keys(result)
    resolved = Config.load(CONFIGS / "ds_stage2.json").resolve(
        world=64, training_arguments=TrainingArguments(**ARGUMENTS)
    )
    params = resolved.optimizer.params
    expected = {"lr": params.lr, "weight_decay": params.weight_decay, "betas": list(params.betas)}
    assert {name: found[f"optimizer.params.{name}"]["value"] for name in expected} == expected
    assert found["optimizer.params.lr"]["origin"] == "auto from learning_rate"
    assert found["bf16.enabled"]["value"] is True
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    assert json.loads(result.stdout)["batch"] == dict(zip(sizes, (256, 4, 1), strict=True))
    text = run("configs/ds_stage2.json", "--training-arguments", "args.json", "--world", "64").stdout
    assert "256 samples = 4 a device x 1 micro-batches x 64 data shards" in text


def test_every_verdict_and_note_is_shown_within_the_width(run):
    zero = {"stage": 2, "round_robin_gradients": True, "reduce_bucket_size": 5e8, "stage3_max_live_parameters": 1e9}
    result = run({"train_batch_size": 16, "zero_optimization": zero, "wandb": {"enabled": True, "team": "t"}})
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert max(map(len, text.splitlines())) <= 80
    for row in (
        r"^zero_optimization$",
        r"^  reduce_bucket_size +5e8 +translated +given$",
        r"^  round_robin_gradients +true +no effect here +given$",
        r"^      every device holds a part of every gradient$",
    ):
        assert re.search(row, text, re.MULTILINE), text
    notes = " ".join(text.partition("\nNotes\n")[2].split())
    config = Config.load({"train_batch_size": 16, "zero_optimization": zero, "wandb": {"enabled": True, "team": "t"}})
    assert config.notes
    assert all(note in notes for note in config.notes)


def test_all_shows_the_keys_that_nobody_has_set(run):
    given, everything = (keys(run({"train_batch_size": 16}, *options, "--json")) for options in ((), ("--all",)))
    assert "gradient_clipping" not in given
    assert everything["gradient_clipping"] == {
        "path": "gradient_clipping",
        "value": 1.0,
        "origin": "default",
        "verdict": "honoured",
        "reason": everything["gradient_clipping"]["reason"],
    }
    assert {"fp16.hysteresis", "zero_optimization.sub_group_size", "wandb"} <= everything.keys()
    assert given.keys() < everything.keys()
    text = run({"train_batch_size": 16}, "--all").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"gradient_clipping +1.0 +honoured +default", text)


def test_three_batch_sizes_imply_the_number_of_devices(run):
    sizes = {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    assert "96 samples = 4 a device x 2 micro-batches x 12 data shards" in run(sizes).stdout
    assert "do not fit 8 data shards" in run(sizes, "--world", "8").stderr


def test_without_a_number_of_devices_it_is_one_that_the_file_fits(run):
    result = run({"train_batch_size": 12})
    assert "12 samples = 2 a device x 1 micro-batches x 6 data shards" in result.stdout
    assert "No number of devices was given: 6 data shards fit the batch sizes." in result.stdout
    assert "No number of devices" not in run({"train_batch_size": 12}, "--world", "4").stdout
    found = json.loads(run({"train_batch_size": 12}, "--json").stdout)
    assert (found["world"], found["world_origin"]) == (6, "fit the batch sizes")


@pytest.mark.parametrize(
    ("params", "decoupled"),
    [({}, True), ({"adam_w_mode": True}, True), ({"adam_w_mode": False}, False)],
)
def test_an_adam_that_is_adamw_is_shown_as_such(run, params, decoupled):
    text = run({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": params}}).stdout
    assert ("AdamW: its weight decay is decoupled" in text) == decoupled
    assert "is decoupled" not in run({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {}}}).stdout


def test_a_run_file_is_filled_from_its_own_training_arguments(run):
    run_file = read_object(CONFIGS / "tiny.json")
    result = run("configs/tiny.json", "--world", "4", "--json")
    micro = run_file["training_arguments"].get("per_device_train_batch_size", 8)
    accumulation = run_file["training_arguments"].get("gradient_accumulation_steps", 1)
    assert json.loads(result.stdout)["batch"]["train_batch_size"] == micro * accumulation * 4
    assert keys(result)["optimizer.params.lr"]["value"] == run_file["training_arguments"]["learning_rate"]


def test_lists_of_objects_are_shown_as_json(run):
    groups = [{"match": "bias", "weight_decay": 0.0}]
    found = keys(run({"train_batch_size": 8, "jzero": {"param_groups": groups, "keep_fp32": ["norm"]}}, "--json"))
    assert found["jzero.param_groups"]["value"] == [{**groups[0], "lr_multiplier": 1.0}]
    assert found["jzero.keep_fp32"]["value"] == ["norm"]
    assert '"bias"' in run({"train_batch_size": 8, "jzero": {"param_groups": groups}}).stdout


def test_a_file_of_accelerate(run):
    yaml = "mixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n  gradient_accumulation_steps: 2\n"
    found = keys(run(yaml, "--json", name="accelerate.yaml"))
    assert (found["zero_optimization.stage"]["value"], found["gradient_accumulation_steps"]["value"]) == (3, 2)


@pytest.mark.parametrize(
    ("file", "options", "says"),
    [
        ("no.json", (), "error: no.json: cannot read the file: No such file or directory"),
        ({"train_batch_size": 12}, ("--world", "8"), "error: ds.json: `train_batch_size` = 12"),
        ({"train_batch_size": 7, "gradient_accumulation_steps": 2}, (), "do not fit 7 data shards"),
        ({"num_layers": 2, "hidden-size": 8, "seq_length": 9}, (), "error: ds.json: is a configuration of GPT-NeoX"),
        ({"a\0b": 1}, (), "unknown key `a\\x00b`"),
        (
            {"zero_optimization": {"stage": 5}},
            (),
            "`zero_optimization.stage` must be 0, 1, 2 or 3, got 5",
        ),
        ({"gradient_clipp": 1}, (), "did you mean `gradient_clipping`?"),
        ({"compression_training": {"a": {"enabled": True}}}, (), "error: ds.json: `compression_training`"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1}}}, ("--training-arguments", "args.json"), "contradicts"),
        (
            {"train_batch_size": 8},
            ("--training-arguments", "ds.json"),
            "ds.json: unknown key `train_batch_size`",
        ),
    ],
)
def test_a_refusal_is_one_sentence_and_exit_status_2(run, file, options, says):
    result = run(file, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_the_examples_of_the_help_work(run):
    text = " ".join(run("--help").stdout.split())
    examples = re.findall(r"jzero config (configs/\S+)((?: (?:\\ )?--[\w-]+(?: [\w.]+)?)*)", text)
    assert len(examples) == 4
    for file, options in examples:
        result = run(file, *options.replace("\\", "").split())
        assert result.exit_code == 0, result.output


def test_what_training_arguments_of_a_file_do_not_do_is_said(run, tmp_path):
    (tmp_path / "args.json").write_text(json.dumps({**ARGUMENTS, "torch_compile": True}))
    result = run({"train_batch_size": 8}, "--training-arguments", "args.json", "--json")
    notes = json.loads(result.stdout)["notes"]
    assert "args.json: `torch_compile` has no effect here: XLA compiles every step as a whole" in notes
    (tmp_path / "args.json").write_text(json.dumps({"push_to_hub": True}))
    result = run({"train_batch_size": 8}, "--training-arguments", "args.json")
    assert result.exit_code == 2
    assert "args.json: `push_to_hub` = True is refused: nothing is pushed to a hub" in result.output
