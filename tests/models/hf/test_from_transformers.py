"""The run of docs/from_transformers.md: its files are read as they stand there, and its plan is made."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jzero.cli.program import app
from jzero.config import load_run

PAGE = (Path(__file__).parents[3] / "docs" / "from_transformers.md").read_text()
PUBLISHED = json.loads((Path(__file__).parents[2] / "golden" / "hf" / "published.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tutorial")
    run, deepspeed = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (folder / "run.json").write_text(run)
    (folder / "ds_config.json").write_text(deepspeed)
    (folder / "Llama-2-7b-hf").mkdir()
    (config,) = [entry["config"] for entry in PUBLISHED if "Llama-2-7b" in entry["source"]]
    (folder / "Llama-2-7b-hf" / "config.json").write_text(json.dumps(config))
    return folder


def test_the_files_are_read_and_the_argument_of_every_flag_is_there(folder):
    run = load_run(folder / "run.json")
    flags = set(re.findall(r"--(\w+) ", PAGE.split("```console")[1]))
    elsewhere = {"num_gpus", "model_name_or_path", "data_path", "deepspeed"}
    assert flags - elsewhere == set(json.loads((folder / "run.json").read_text())["training_arguments"])
    assert run.training_arguments.learning_rate == 2e-5
    assert run.deepspeed.zero_optimization.stage == 3


def plan(folder, *options):
    done = CliRunner().invoke(app, ["plan", str(folder / "run.json"), "--gpu", "a100-80g", "--json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_it_fits_on_eight_a100s(folder):
    found = plan(folder, "--closed-form", "--stages", "3")
    assert found["n_params"] == 6_738_415_616
    (row,) = [row for row in found["rows"] if (row["offload"], row["groups"]) == ("nothing", "none")]
    assert row["fits"]
    assert (row["micro_batch"], row["accumulation"]) == (4, 4)
    assert row["peak"] < 25e9  # 10.1 of them last


@pytest.mark.full
def test_its_plan_compiles(folder):
    assert any(row["source"] == "compiled" for row in plan(folder, "--stages", "3")["rows"])
