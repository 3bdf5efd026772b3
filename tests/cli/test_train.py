"""How `jzero train` ends where it is one process of several that do not find each other."""

import socket

import pytest
from typer.testing import CliRunner

from jzero.cli.program import app


@pytest.fixture
def first_of_two(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return port


def test_a_process_that_does_not_come_is_named_and_asks_for_another_start(first_of_two):
    ended = CliRunner().invoke(app, ["train", "configs/tiny.json", "training_arguments.ddp_timeout=1"])
    assert ended.exit_code == 75
    assert f"error: Waited 1 s for process 1 of 2, which must come to port {first_of_two} of " in ended.output


def test_what_a_launcher_leaves_half_said_is_a_mistake(monkeypatch):
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    ended = CliRunner().invoke(app, ["train", "configs/tiny.json"])
    assert ended.exit_code == 2
    assert "error: The environment has JOB_COMPLETION_INDEX=1, so this is one process of several" in ended.output


def test_a_mistake_in_the_file_is_said_also_where_nobody_else_comes(first_of_two, monkeypatch):
    monkeypatch.setattr("jzero.cli.train._TELLING_SECONDS", 0.2)
    ended = CliRunner().invoke(app, ["train", "configs/tiny.json", "training_arguments.max_step=1"])
    assert ended.exit_code == 2
    assert "max_step" in ended.output


@pytest.mark.parametrize("named", ["nowhere", "true"])
def test_a_run_file_names_what_it_goes_on_from(tmp_path, named):
    out = f"training_arguments.output_dir={tmp_path}"
    named = f"training_arguments.resume_from_checkpoint={tmp_path / named if named != 'true' else named}"
    ended = CliRunner().invoke(app, ["train", "configs/tiny.json", "deepspeed={}", out, named])
    assert ended.exit_code == 2
    assert f"error: {'' if 'true' in named else 'There is no checkpoint at '}{tmp_path}" in ended.output
