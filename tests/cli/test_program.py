"""The command line: it teaches, it trains, and bad input is one sentence on stderr."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jzero.cli.program import COMMANDS, app

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "configs" / "tiny.json")


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "TERM": "dumb"})


def start(*arguments: str) -> subprocess.Popen:
    """Starts the program in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "jzero", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_help_teaches_by_examples():
    text = run("train", "--help").output
    for word in ("jzero train configs/demo.json --devices 8", "zero_optimization.stage=2", "--resume", "metrics.jsonl"):
        assert word in text
    assert "train" in run().output
    assert re.match(r"jzero \d+\.\d+\.\d+, jax \d+", run("--version").output)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name):
    command = COMMANDS[name].load(name)
    assert command.name == name
    assert command.help.splitlines()[0] == COMMANDS[name].help


def test_a_mistyped_command_is_met_with_the_nearest():
    result = run("confgi")
    assert result.exit_code == 2
    assert "Did you mean 'config'" in result.stderr


def test_it_trains_and_shows_what_it_does(tmp_path):
    out = tmp_path / "out"
    result = run(
        "train", TINY, f"training_arguments.output_dir={out}", "training_arguments.max_steps=2", "--devices", "8"
    )
    assert result.exit_code == 0, result.output
    for words in (
        "shard 8",
        "8 simulated CPU devices",
        "fp16, ZeRO stage 1",
        "What each device holds",
        "4P/8",
        "Done after step 2",
    ):
        assert words in result.output
    assert (out / "checkpoint-2").is_dir()
    assert [json.loads(line)["step"] for line in (out / "metrics.jsonl").read_text().splitlines()] == [1, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no.json"], "error: no.json: cannot read the file"),
        ([TINY, "stage"], "error: override 'stage': write key=value"),
        ([TINY, "training_arguments.learning_rat=1"], "`training_arguments.learning_rate`, which it resembles"),
        ([TINY, "model.n_heads=2"], "error: model has no 'n_heads' (did you mean 'n_head'?)"),
        ([TINY, "deepspeed.zero_optimization.stage=4"], "must be 0, 1, 2 or 3, got 4"),
        ([TINY, "--devices", "3"], "error: Cannot simulate 3 CPU devices: JAX has already started with 8"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, says):
    result = run("train", *arguments)
    assert result.exit_code == 2
    assert says in result.stderr
    assert "Traceback" not in result.output
    assert len(result.stderr.strip().splitlines()) == 1


def test_ctrl_c_saves_and_the_run_goes_on_from_there(tmp_path):
    common = [f"training_arguments.output_dir={tmp_path}", "training_arguments.max_steps=100000", "--devices", "2"]
    process = start("train", TINY, *common)
    metrics = tmp_path / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None and not (metrics.exists() and metrics.read_text()):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    checkpoint = re.search(r"Go on with --resume (\S+checkpoint-(\d+))\.", out)
    assert checkpoint is not None, out
    step = int(checkpoint[2])
    assert max(json.loads(line)["step"] for line in metrics.read_text().splitlines()) == step
    last = start(
        "train", TINY, common[0], f"training_arguments.max_steps={step + 2}", *common[2:], "--resume", checkpoint[1]
    )
    out, err = last.communicate(timeout=120)
    assert last.returncode == 0, err
    assert f"Done after step {step + 2}" in out
