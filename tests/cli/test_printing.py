"""Names from outside are shown as they are: rich takes nothing in them for markup, and no terminal obeys them."""

from pathlib import Path
from unittest.mock import MagicMock

import jax.numpy as jnp
import pytest
from rich.console import Console
from typer.testing import CliRunner

from jzero import checkpoint
from jzero.cli import train
from jzero.cli.inspect import view
from jzero.cli.program import app
from jzero.explain.parameters import Explanation, Leaf
from jzero.train.trainer import Result

NAMES = ("[bold]x", "[/red]", "[31m]", "a\x1b[2Jb", "a\x07b", "a\u202eb", "a\x9bb")


def shown(name):
    return name.replace("\x1b", r"\x1b").replace("\x07", r"\x07").replace("\u202e", r"\u202e").replace("\x9b", r"\x9b")


def printed(renderable):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


@pytest.mark.parametrize("name", NAMES)
def test_inspect_shows_leaves_keys_and_values_as_they_are(tmp_path, name):
    checkpoint.save(tmp_path / "c", {name: jnp.zeros(2)}, {f"key {name}": f"value {name}", "more": [name]}).wait()
    lines = printed(view(*checkpoint.read_header(tmp_path / "c")))
    assert all(text in lines for text in (shown(name), f"key {shown(name)}", f"value {shown(name)}"))
    assert not set(lines) & {"\x1b", "\x07", "\u202e", "\x9b"}


@pytest.mark.parametrize("name", NAMES)
def test_errors_show_paths_as_they_are(tmp_path, name):
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / name)])
    assert (result.exit_code, result.stderr.replace("\n", "")) == (
        2,
        f"error: There is no checkpoint at {tmp_path}/{shown(name)}: the folder does not exist.",
    )
    for command in (["config", str(tmp_path / name)], ["train", str(tmp_path / name)]):
        result = CliRunner().invoke(app, command)
        assert result.exit_code == 2
        assert f"error: {tmp_path}/{shown(name)}: cannot read the file: No such file or directory" in result.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_run_ends_well_wherever_it_saved(monkeypatch, name):
    for function in ("load_run", "prepare", "describe"):
        monkeypatch.setattr(train, function, MagicMock())
    ended = Result(3, {}, Path("runs", name, "checkpoint-3"), False, 1.0, None)
    monkeypatch.setattr(train, "train", lambda *args, **kwargs: ended)
    result = CliRunner().invoke(app, ["train", "run.json"])
    assert result.exit_code == 0, result.output
    assert f"Checkpoint runs/{shown(name)}/checkpoint-3, metrics runs/{shown(name)}/metrics.jsonl." in result.stdout


@pytest.mark.parametrize("name", NAMES)
def test_explain_shows_parameters_as_they_are(name):
    leaf = Leaf(name, (2,), "whole", False, (f"use {name}",), 0, "", 0, 0, "", 0)
    lines = printed(Explanation([leaf]).table())
    assert f"{shown(name)} (frozen)" in lines
    assert f"use {shown(name)}" in lines
