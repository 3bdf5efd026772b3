"""`jzero train` under two processes: the numbers of one process, and only the first process speaks."""

import itertools
import json
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from jzero.checkpoint.run.place import complete_in
from jzero.cli.program import app
from tests.multiprocess.processes import Processes, report

TIMEOUT = 180


def command(out, devices: int) -> list[str]:
    return [
        "train",
        "configs/tiny.json",
        "model.n_layer=1",
        "model.vocab_size=521",
        "model.d_model=36",  # with these, the embedding needs padding
        "training_arguments.fp16=false",
        "training_arguments.max_steps=3",
        "training_arguments.gradient_accumulation_steps=2",
        f"training_arguments.output_dir={out}",
        "deepspeed.zero_optimization.stage=3",
        "deepspeed.jzero.checkpoint.save_minutes=0.001",
        "deepspeed.zero_optimization.stage3_param_persistence_threshold=100",
        f"--devices={devices}",
    ]


def lines(out) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_train_like_one_and_only_the_first_speaks(tmp_path, monkeypatch):
    with Processes(["-m", "jzero", *command(tmp_path / "two", devices=4)]) as processes:
        ended = processes.succeed(TIMEOUT)
    # A second has passed whenever somebody looks, or a quick step would not be long enough for a save to be due.
    monkeypatch.setattr("jzero.checkpoint.run.folder.time", SimpleNamespace(monotonic=itertools.count().__next__))
    alone = CliRunner().invoke(app, command(tmp_path / "one", devices=8))
    assert alone.exit_code == 0, alone.output

    for words in ("8 simulated CPU devices", "What each device holds", "step     3", "Done after step 3"):
        assert words in ended[0].stdout, report(ended)
        assert words not in ended[1].stdout + ended[1].stderr, report(ended)

    two, one = lines(tmp_path / "two"), lines(tmp_path / "one")
    assert [line["step"] for line in two] == [line["step"] for line in one] == [1, 2, 3, 3]
    for name in ("loss", "validation_loss"):
        values = [[line[name] for line in each if name in line] for each in (two, one)]
        assert values[0] == pytest.approx(values[1], rel=1e-6)
    assert (tmp_path / "two" / "checkpoint-3").is_dir()
    # The first process's clock asked for a save at the first step, and all heard of it at the second one.
    assert [step for step, _ in complete_in(tmp_path / "two")] == [2, 3]
    assert [step for step, _ in complete_in(tmp_path / "one")] == [1, 2, 3]
