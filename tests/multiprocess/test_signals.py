"""A signal that one process gets stops all of them after the same step, with the state saved; before, it ends it."""

import signal
import time

import pytest

from jzero.checkpoint.run.place import complete_in
from tests.multiprocess.processes import Processes, report

TIMEOUT = 180


def _wait_until_it_trains(folder):
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + TIMEOUT
    while not (metrics.exists() and metrics.read_text().count("\n") > 3) and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.mark.full
def test_a_sigterm_of_one_process_stops_both_and_saves(tmp_path):
    command = [
        *("-m", "jzero", "train", "configs/tiny.json", "--devices=1"),
        *("model.n_layer=1", "training_arguments.max_steps=1000000", "training_arguments.save_steps=1000000"),
        *("deepspeed.zero_optimization.stage=auto", f"training_arguments.output_dir={tmp_path}"),
    ]
    with Processes(command) as processes:
        _wait_until_it_trains(tmp_path)
        processes.send_signal(1, signal.SIGTERM)
        ended = processes.wait(TIMEOUT)
    assert [end.returncode for end in ended] == [128 + signal.SIGTERM] * 2, report(ended)
    assert '"auto" became stage 0' in ended[0].stdout, report(ended)  # both agree, or neither would have started
    ((step, _),) = complete_in(tmp_path)
    assert f"Interrupted after step {step} " in ended[0].stdout, report(ended)


def test_a_sigterm_between_joining_and_the_first_step_ends_a_process_at_once(tmp_path):
    script = """if True:
        import pathlib, sys, time
        import jax
        from jzero.launch import initialize_from_environment
        initialize_from_environment()
        pathlib.Path(sys.argv[1], str(jax.process_index())).touch()
        time.sleep(600)
    """
    with Processes(["-c", script, str(tmp_path)]) as processes:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        for rank in (1, 0):
            processes.send_signal(rank, signal.SIGTERM)
        ended = processes.wait(60)
    assert ended[1].returncode == -signal.SIGTERM, report(ended)
    assert ended[0].returncode != 0, report(ended)


@pytest.mark.full
def test_a_process_that_stops_makes_the_other_one_say_so_and_end(tmp_path):
    command = [
        *("-m", "jzero", "train", "configs/tiny.json", "--devices=1", "deepspeed.jzero.hang_seconds=5"),
        *("model.n_layer=1", "training_arguments.max_steps=1000000", "training_arguments.save_steps=1000000"),
        f"training_arguments.output_dir={tmp_path}",
    ]
    with Processes(command) as processes:
        _wait_until_it_trains(tmp_path)
        processes.send_signal(1, signal.SIGSTOP)
        first = processes.wait_for(0, TIMEOUT)
        processes.send_signal(1, signal.SIGKILL)
    assert first.returncode == 75, first
    assert "s at step " in first.stderr.splitlines()[-1], first
    assert "most recent call first" in first.stderr, first
