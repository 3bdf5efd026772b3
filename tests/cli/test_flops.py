"""`jzero flops`: a run file's arithmetic, as a table and as JSON."""

import json

import pytest
from typer.testing import CliRunner

from jzero.cli.program import app


def run(*arguments):
    return CliRunner().invoke(app, ["flops", *arguments])


def test_the_figures_of_a_published_model():
    found = json.loads(run("--model", "gpt2", "data.seq_len=1024", "--whole-square", "--json").stdout)
    assert found["step_flops"] == 4 * 1_749_889_843_200  # torch's count of 2 rows, see tests/observe
    assert (found["samples"], found["tokens"], found["n_gpus"], found["precision"]) == (8, 8192, 8, "bf16")
    assert found["seconds_at_peak"] == pytest.approx(found["step_flops"] / 8 / 989.4e12)
    masked = json.loads(run("--model", "gpt2", "--json").stdout)
    assert found["step_flops"] - masked["step_flops"] == 3 * 8 * 12 * 2 * 2 * 768 * (1024 * 1023 // 2)


def test_the_table_of_a_run_file_and_of_images():
    shown = run("configs/demo.json", "--gpus", "4", "--gpu", "a100-80g").stdout
    assert "636,032" in shown
    assert "attention: of pairs that its mask shows" in shown
    assert "at the peak of 4 a100-80g in fp16" in shown
    assert "a token" not in run("--model", "resnet50").stdout


def test_a_mistake_is_a_sentence():
    for arguments, sentence in {
        ("--model", "gpt5"): "known sizes: gpt2",
        ("configs/demo.json", "--gpu", "h1000"): "h1000",
        (): "nothing says what to plan",
    }.items():
        done = run(*arguments)
        assert (done.exit_code, done.output.startswith("error: ")) == (2, True)
        assert sentence in done.output
