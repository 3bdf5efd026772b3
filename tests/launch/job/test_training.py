"""`jzero train` under `jzero launch`: the numbers of one process, and an undisturbed run's after any failure."""

import json
import random
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.launch.launched import Launched, alive, kill, launch, ranks, wait_until

ROOT = Path(__file__).parents[3]
TINY = ROOT / "configs/tiny.json"
SMALL = ("model.n_layer=1", "training_arguments.fp16=false")
HOSTS = "127.0.0.2 slots=2\n127.0.0.3 slots=2\n"


def losses(folder: Path) -> list[float]:
    """The loss of each step, then the last validation's."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    by_step = {line["step"]: line["loss"] for line in lines if "loss" in line}
    return [by_step[step] for step in sorted(by_step)] + [
        line["validation_loss"] for line in lines if "loss" not in line
    ][-1:]


def command(folder: Path, devices: int, *more: str) -> list[str]:
    """What is launched."""
    out = f"training_arguments.output_dir={folder / 'run'}"
    return ["train", str(TINY), "--devices", str(devices), out, *more]


CACHE_ALL = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}


def compiled(folder: Path) -> int:
    """How many training steps were compiled and kept."""
    return len(list((folder / "cache").glob("jit_step-*-cache")))


def reached(run: Launched, folder: Path, step: int) -> bool:
    """Whether a run has come to a step."""
    assert run.process.poll() is None, f"{run.out}\n{run.err}"
    file = folder / "run/metrics.jsonl"
    return file.exists() and any(f'"step": {step},' in line for line in file.read_text().splitlines())


def test_a_killed_process_is_replaced_and_what_was_compiled_is_there(tmp_path):
    more = [*SMALL, "training_arguments.max_steps=40", "training_arguments.save_steps=4"]
    more += [f"deepspeed.jzero.compile_cache={tmp_path / 'cache'}"]
    options = ("--procs-per-node", 2, "--max-restarts", 1)
    with Launched(tmp_path, *options, *command(tmp_path, 1, *more), **CACHE_ALL) as run:
        wait_until(lambda: reached(run, tmp_path, 5) and (tmp_path / "run/checkpoint-4").exists(), 120)
        kill(ranks(tmp_path)[1])
        before = compiled(tmp_path)
        assert run.wait(120) == 0, f"{run.out}\n{run.err}"
    assert "was ended by SIGKILL" in run.err
    assert "Starting again, attempt 2: " in run.err
    assert "Going on from" in run.out
    assert len(losses(tmp_path / "run")) == 41
    assert before > 0
    assert compiled(tmp_path) == before


@pytest.mark.full
def test_what_a_killed_process_costs_is_no_loss(tmp_path):
    more = [*SMALL, "training_arguments.max_steps=20", "training_arguments.save_steps=4"]
    calm, killed = (tmp_path / name for name in ("calm", "killed"))
    calm.mkdir()
    killed.mkdir()
    status, ended = launch(calm, "--procs-per-node", 2, *command(calm, 1, *more), timeout=120)
    assert status == 0, f"{ended.out}\n{ended.err}"
    with Launched(killed, "--procs-per-node", 2, "--max-restarts", 1, *command(killed, 1, *more)) as run:
        wait_until(lambda: reached(run, killed, 9), 120)
        kill(ranks(killed)[1])
        assert run.wait(120) == 0, f"{run.out}\n{run.err}"
    assert losses(killed / "run") == losses(calm / "run")


@pytest.fixture
def hosts(tmp_path):
    (tmp_path / "hosts").write_text(HOSTS)
    return tmp_path


ON_HOSTS = ("--hostfile", "hosts", "--export", "STUB")
MANY = ("training_arguments.max_steps=100000", "training_arguments.save_steps=100000")


@pytest.mark.full
def test_two_hosts_of_two_processes_train_like_one_process(tmp_path):
    folders = [tmp_path / name for name in ("first", "second", "one")]
    for folder in folders:
        folder.mkdir()
        (folder / "hosts").write_text(HOSTS)
    for folder in folders[:2]:
        status, ended = launch(folder, *ON_HOSTS, *command(folder, 2), timeout=300)
        assert status == 0, f"{ended.out}\n{ended.err}"
    status, ended = launch(folders[2], *command(folders[2], 8), timeout=300)
    assert status == 0, f"{ended.out}\n{ended.err}"
    first, second, one = (losses(folder / "run") for folder in folders)
    assert first == second
    assert first == pytest.approx(one, rel=1e-6)


@pytest.mark.full
def test_a_process_that_is_killed_at_its_start_is_reported(hosts):
    with Launched(hosts, *ON_HOSTS, *command(hosts, 1, *SMALL, *MANY)) as run:
        wait_until(lambda: len(ranks(hosts)) == 4)
        started = ranks(hosts)
        kill(started[3])
        began = time.monotonic()
        assert run.wait(60) == 137
        assert time.monotonic() - began < 15
    assert "Process 3 (on 127.0.0.3, pid " in run.err
    assert "was ended by SIGKILL." in run.err
    assert not any(map(alive, started.values()))


@pytest.mark.full
def test_a_process_that_is_killed_in_a_step_ends_the_others_in_seconds(hosts):
    with Launched(hosts, *ON_HOSTS, *command(hosts, 1, *SMALL, *MANY)) as run:
        wait_until(lambda: reached(run, hosts, 5), 120)
        started = ranks(hosts)
        kill(started[0])  # the coordinator
        began = time.monotonic()
        assert run.wait(60) == 137
        assert time.monotonic() - began < 20
    assert "Process 0 (on 127.0.0.2, pid " in run.err
    assert not any(map(alive, started.values()))


@pytest.mark.full
def test_a_process_that_is_killed_in_a_save_costs_that_save_only(hosts):
    more = [*SMALL, "training_arguments.max_steps=40", "training_arguments.save_steps=10"]
    with Launched(hosts, *ON_HOSTS, "--max-restarts", 1, *command(hosts, 1, *more)) as run:
        wait_until(lambda: [path for path in (hosts / "run").glob("*") if "checkpoint-20" in path.name], 120)
        kill(ranks(hosts)[1])
        assert run.wait(180) == 0, f"{run.out}\n{run.err}"
    assert "Starting again, attempt 2: it has saved step" in run.err
    assert "Done after step 40" in run.out


@pytest.mark.full
def test_a_process_that_is_stopped_is_named_and_the_job_ends_with_75(hosts):
    more = [*SMALL, *MANY, "deepspeed.jzero.hang_seconds=5"]
    with Launched(hosts, *ON_HOSTS, *command(hosts, 1, *more)) as run:
        wait_until(lambda: reached(run, hosts, 5), 120)
        started = ranks(hosts)
        kill(started[2], signal.SIGSTOP)
        assert run.wait(90) == 75, f"{run.out}\n{run.err}"
    assert "Process 2 (on 127.0.0.3) is behind: it has said nothing for" in run.err
    assert not any(map(alive, started.values()))


@pytest.mark.full
def test_a_mistake_in_the_file_ends_all_and_is_not_tried_again(hosts):
    wrong = ("--max-restarts", 3, *command(hosts, 1, "model.n_layers=1"))
    status, ended = launch(hosts, *ON_HOSTS, *wrong, timeout=90)
    assert status == 2
    assert "error: model has no 'n_layers'" in ended.err
    assert "Not started again" in ended.err


@pytest.mark.full
def test_a_port_that_is_in_use_is_named(tmp_path):
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        options = ("--procs-per-node", 2, "--master-port", port)
        status, ended = launch(tmp_path, *options, *command(tmp_path, 1, *SMALL), timeout=60)
    assert status == 75
    assert f"error: Process 0 cannot listen at port {port}" in ended.out


@pytest.mark.full
def test_sigterm_saves_and_the_job_ends_with_143(hosts):
    with Launched(hosts, *ON_HOSTS, "--max-restarts", 3, *command(hosts, 1, *SMALL, *MANY)) as run:
        wait_until(lambda: reached(run, hosts, 5), 120)
        run.process.terminate()
        assert run.wait(60) == 143, f"{run.out}\n{run.err}"
    assert "Go on with --resume" in run.out
    assert "ended by a second signal" not in run.out


@pytest.mark.full
def test_a_run_goes_from_eight_devices_to_four_and_back_with_the_same_batch(tmp_path):
    more = ["training_arguments.fp16=false", "training_arguments.max_steps=40", "training_arguments.save_steps=5"]
    calm, moved = tmp_path / "calm", tmp_path / "moved"
    for folder in (calm, moved):
        folder.mkdir()
        (folder / "hosts").write_text(HOSTS)
    status, ended = launch(calm, *ON_HOSTS, *command(calm, 2, *more), timeout=300)
    assert status == 0, f"{ended.out}\n{ended.err}"
    with Launched(moved, *ON_HOSTS, "--min-nodes", 1, "--max-restarts", 3, *command(moved, 2, *more)) as run:
        wait_until(lambda: reached(run, moved, 12), 120)
        (moved / "down-127.0.0.3").touch()
        kill(ranks(moved)[2])
        wait_until(lambda: reached(run, moved, 22), 200)
        (moved / "down-127.0.0.3").unlink()
        kill(ranks(moved)[0])
        assert run.wait(200) == 0, f"{run.out}\n{run.err}"
    assert "The world is 2 processes on 1 hosts now; it was 4." in run.err
    assert "The world is 4 processes on 2 hosts now; it was 2." in run.err
    assert "batch  32 windows = 4 a device x 2 micro-batches x 4 data shards" in run.out
    assert "a step keeps its 32 samples on 4 data shards" in run.out
    assert losses(moved / "run") == pytest.approx(losses(calm / "run"), rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("n_kills", [3, 20])
def test_random_kills_change_no_loss(tmp_path, n_kills):
    steps = 30 + 15 * n_kills
    more = [*SMALL, f"training_arguments.max_steps={steps}", "training_arguments.save_steps=5"]
    more += [f"deepspeed.jzero.compile_cache={tmp_path / 'cache'}"]
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    for folder in (calm, killed):
        folder.mkdir()
        (folder / "hosts").write_text(HOSTS)
    status, ended = launch(calm, *ON_HOSTS, *command(calm, 1, *more), timeout=300, **CACHE_ALL)
    assert status == 0, f"{ended.out}\n{ended.err}"
    chance = random.Random(n_kills)
    with Launched(killed, *ON_HOSTS, "--max-restarts", n_kills, *command(killed, 1, *more), **CACHE_ALL) as run:
        for attempt in range(1, n_kills + 1):
            log = killed / "logs/rank-00003.log"
            wait_until(lambda: log.exists() and f"attempt {attempt} ---" in log.read_text(), 120)  # noqa: B023
            time.sleep(chance.uniform(0, 15))
            kill(ranks(killed)[chance.randrange(4)])
        assert run.wait(600) == 0, f"{run.out}\n{run.err}"
    assert losses(killed / "run") == losses(calm / "run")
