"""What `jzero launch --print` prints, word for word, and what programs that know these formats say of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from jzero.cli.program import app

GOLDEN = Path(__file__).with_name("golden")
TWO = ("--num-nodes", "2", "--num-gpus", "8", "--export", "A=it's $(HOME)", "--job-name", "my-run")
CASES = {
    "slurm.sbatch": ("--print", "slurm", *TWO, "train", "run.json", "model.name=a b"),
    "jobset.yaml": ("--print", "jobset", "--image", "me/jzero:1", *TWO, "train", "run.json", "model.name=a b"),
    "trainjob.yaml": ("--print", "trainjob", "--image", "me/jzero:1", *TWO, "train", "run.json"),
    "mpirun.sh": ("--print", "mpirun", "-H", "hosts", "--export", "A=it's $HOME", "train", "run.json"),
    "mine.sbatch": ("--print", "slurm", "--num_gpus", "1", "--max_restarts", "9", "mine.py", "--resume", "x y"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    place = tmp_path / "it's a folder"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("HOME", str(tmp_path))
    (place / "hosts").write_text("node1 slots=2\nnode2 slots=2\n")
    return place


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["launch", *arguments])
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("name", CASES)
def test_it_is_as_it_was(name, folder):
    text = printed(*CASES[name]).replace(str(folder.parent), "/home/me")
    if os.environ.get("WRITE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


@pytest.mark.parametrize("name", ["jobset.yaml", "trainjob.yaml"])
def test_a_manifest_holds_what_was_written(name, folder):
    documents = list(yaml.safe_load_all((GOLDEN / name).read_text()))
    found = str(documents)
    for words in (
        "it's $$(HOME)",
        "'train', 'run.json'",
        "'/dev/shm'",
        "'nvidia.com/gpu': 8",
        "GracePeriodSeconds': 300",
    ):
        assert words in found


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--print", "sge", "train"), "--print sge: must be one of slurm, jobset, trainjob, mpirun."),
        (("--print", "slurm", "train"), "--num-gpus is needed: how many GPUs each node has."),
        (("--print", "jobset", "--num-gpus", "8", "train"), "--image is needed"),
        (("--print", "slurm", "--num-gpus", "8", "--job-name", "a b", "train"), "--job-name 'a b': a job's name"),
        (("--print", "slurm", "--include", "a", "--num-gpus", "8", "train"), "--include and --exclude choose among"),
        (("--print", "slurm", "-H", "uneven", "train"), "The hosts have 1 and 2 slots"),
    ],
)
def test_what_is_missing_is_one_sentence(arguments, says, folder):
    (folder / "uneven").write_text("node1 slots=2\nnode2 slots=1\n")
    result = CliRunner().invoke(app, ["launch", *arguments])
    assert result.exit_code == 2
    assert f"error: {says}" in result.stderr


def stub(folder: Path, name: str, text: str) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bin" / name).chmod(0o755)


@pytest.mark.parametrize(
    ("status", "restarts", "queued"),
    [(0, 0, False), (2, 0, False), (143, 50, True), (75, 0, True), (1, 2, True), (1, 3, False)],
)
def test_the_batch_script_queues_itself_again_where_that_helps(folder, status, restarts, queued):
    stub(folder, "srun", f'printf "%s\\n" "$@" >words; printenv A >a; exit {status}')
    stub(folder, "scontrol", 'echo "$@" >scontrol')
    variables = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": str(restarts)}
    ended = subprocess.run(["bash", GOLDEN / "slurm.sbatch"], env=variables, cwd=folder, timeout=20)
    assert ended.returncode == status
    words = (folder / "words").read_text().splitlines()
    assert words[-6:] == ["jzero", "train", "run.json", "model.name=a b", "--resume", "auto"]
    assert (folder / "a").read_text() == "it's $(HOME)\n"
    assert (folder / "scontrol").exists() == queued
    if queued:
        assert (folder / "scontrol").read_text() == "requeue 7\n"


@pytest.mark.full
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="needs shellcheck")
@pytest.mark.parametrize("name", [name for name in CASES if not name.endswith("yaml")])
def test_shellcheck_has_nothing_to_say(name):
    meant = ("--exclude", "SC2016")  # what is within single quotes is to stay as it is
    ended = subprocess.run(
        ["shellcheck", "--shell=bash", *meant, GOLDEN / name], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stdout


@pytest.mark.full
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI")
def test_the_printed_mpirun_line_runs(folder):
    show = "import os; open(os.environ['OMPI_COMM_WORLD_RANK'], 'w').write(os.environ['A'])"
    text = printed("--print", "mpirun", "--num-gpus", "2", "--export", "A=it's $HOME", sys.executable, "-c", show)
    root = {f"OMPI_{name}": "1" for name in ("ALLOW_RUN_AS_ROOT", "ALLOW_RUN_AS_ROOT_CONFIRM")}
    variables = {**os.environ, **root, "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    ended = subprocess.run(["bash", "-c", text], env=variables, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert [(folder / rank).read_text() for rank in "01"] == ["it's $HOME"] * 2


def test_a_folder_whose_name_would_end_a_line_of_the_script_is_refused(folder, monkeypatch):
    (folder / "a\nreboot").mkdir()
    monkeypatch.chdir(folder / "a\nreboot")
    result = CliRunner().invoke(app, ["launch", "--print", "slurm", "--num-gpus", "1", "train", "run.json"])
    assert result.exit_code == 2
    assert "cannot stand in a batch script" in result.stderr
