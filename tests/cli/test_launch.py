"""`jzero launch` as it is called: both spellings, what is wrong in one sentence, and `jzero train`'s short forms."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jzero.cli import launch
from jzero.cli.program import app
from jzero.launch.hosts.hostfile import Host

ROOT = Path(__file__).parents[2]
OUTER = ("RANK", "WORLD_SIZE", "SLURM_JOB_ID", "SLURM_JOB_NODELIST")


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """The jobs that would have been started."""
    jobs = []

    class Fake:
        def __init__(self, job, max_restarts):
            self.job, self.max_restarts = job, max_restarts

        def run(self) -> int:
            jobs.append(self)
            return 0

    monkeypatch.setattr(launch, "Launching", Fake)
    monkeypatch.chdir(tmp_path)
    for name in OUTER:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    return jobs


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "120", "TERM": "dumb"})


@pytest.mark.parametrize("spelling", [str, lambda word: word.replace("-", "_") if word.startswith("--") else word])
def test_dashes_and_underscores_are_alike(spelling, asked):
    options = [
        "--hostfile",
        "hosts",
        "--num-gpus",
        "1",
        "--master-port",
        "7",
        "--max-restarts",
        "3",
        "--min-nodes",
        "1",
    ]
    options = [
        word if word == "--hostfile" else f"--{spelling(word)[2:]}" if word[:2] == "--" else word for word in options
    ]
    result = run("launch", *options, "mine.py", "--num_gpus", "9")
    assert result.exit_code == 0, result.stderr
    (made,) = asked
    assert made.job.hosts == (Host("a", (0,)), Host("b", (0,)))
    assert (made.job.master_port, made.max_restarts, made.job.min_nodes) == (7, 3, 1)
    assert made.job.command == (sys.executable, "mine.py", "--num_gpus", "9")


@pytest.mark.parametrize("count", ["--num-gpus", "--num_gpus"])
def test_train_has_short_forms(count, asked):
    words = ["train", "run.json", "a=1", "--devices", "2", "--overwrite"]
    result = run(*words, count, "2", "--hostfile", "hosts")
    assert result.exit_code == 0, result.stderr
    (made,) = asked
    assert made.job.command == (sys.executable, "-m", "jzero", *words)
    assert made.job.hosts == (Host("a", (0, 1)), Host("b", (0, 1)))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--hostfile", "none"], "--hostfile none: cannot read the file: No such file or directory."),
        (["--hostfile", "hosts", "-i", "a", "-e", "b"], "--include and --exclude cannot be given together"),
        (["--hostfile", "hosts", "--min-nodes", "3"], "--min-nodes 3 is more than all of the 2 hosts."),
        (["--hostfile", "hosts", "--min-nodes", "2", "--max-nodes", "1"], "--min-nodes 2 is more than --max-nodes 1"),
        (["--export", "NO_SUCH"], "--export NO_SUCH: there is no such variable here"),
    ],
)
def test_what_is_wrong_is_one_sentence(options, says, asked):
    result = run("launch", *options, "true")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {says}")
    assert len(result.stderr.splitlines()) == 1
    assert not asked


def test_an_allocation_without_srun_is_refused(asked, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "a[1-2]")
    monkeypatch.setattr("shutil.which", lambda _: None)
    result = run("launch", "true")
    assert result.exit_code == 2
    assert "error: The environment is that of SLURM's job 7, but there is no srun here" in result.stderr


def test_the_list_of_options_needs_no_jax():
    script = "import sys; from jzero.cli.program import app; app(['launch', '--help'], standalone_mode=False)"
    script += "; print([name for name in ('jax', 'numpy', 'yaml') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stderr
    assert "--max-restarts" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[]"
