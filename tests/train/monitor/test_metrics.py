"""metrics.jsonl holds one valid JSON object a line, whatever the figures are."""

import json
import math

import pytest

from jzero.train.monitor import JsonLines


def lines(path):
    strict = lambda name: (_ for _ in ()).throw(ValueError(name))
    return [json.loads(line, parse_constant=strict) for line in path.read_text().splitlines()]


def test_lines_are_there_as_soon_as_they_are_written(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    writer = JsonLines(path)
    writer.write(1, {"loss": 5.5})
    assert lines(path) == [{"step": 1, "loss": 5.5}]
    writer.write(2, {"validation_loss": 5.4})
    assert lines(path)[1] == {"step": 2, "validation_loss": 5.4}
    writer.close()


def test_what_json_cannot_say_is_null_and_named(tmp_path):
    writer = JsonLines(tmp_path / "m.jsonl")
    writer.write(1, {"loss": math.nan, "grad_norm": -math.inf, "learning_rate": 0.0})
    writer.close()
    assert lines(tmp_path / "m.jsonl") == [
        {"step": 1, "loss": None, "grad_norm": None, "learning_rate": 0.0, "non_finite": ["loss", "grad_norm"]}
    ]


def test_a_new_run_starts_an_empty_file_and_a_resumed_one_goes_on(tmp_path):
    path = tmp_path / "m.jsonl"
    for step in (1, 2, 3):
        writer = JsonLines(path, resume_at=step - 1)
        writer.write(step, {"loss": float(step)})
        writer.close()
    with path.open("a") as file:
        file.write('{"step": 4, "lo')
    JsonLines(path, resume_at=2).close()
    assert [line["step"] for line in lines(path)] == [1, 2]
    JsonLines(path).close()
    assert lines(path) == []


def test_every_line_names_its_run_and_those_of_another_are_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "loss": 0}\n{"step": 2, "run": "other"}\n{"step": 2, "run": "mine"}\n')
    writer = JsonLines(path, run="mine", resume_at=2)
    writer.write(3, {"loss": 1.0})
    writer.close()
    assert lines(path) == [
        {"step": 1, "loss": 0},
        {"step": 2, "run": "mine"},
        {"step": 3, "run": "mine", "loss": 1.0},
    ]


@pytest.mark.parametrize("garbage", ["\0\udcff", "[" * 100_000, "[1]", '"step"', '{"step": "2"}'])
def test_nothing_counts_after_what_is_no_line(tmp_path, garbage):
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"step": 1}}\n{garbage}\n{{"step": 2}}\n', errors="surrogateescape")
    JsonLines(path, run="mine", resume_at=5).close()
    assert lines(path) == [{"step": 1}]
