"""No process waits for one that has failed, and what failed is said."""

from pathlib import Path

from tests.multiprocess.processes import Processes, report

TIMEOUT = 60
"""Seconds, of which a process needs most to start; JAX by itself would wait for 300."""


def test_an_exception_of_one_process_ends_both():
    with Processes([str(Path(__file__).with_name("failing_worker.py"))]) as processes:
        ended = processes.wait(TIMEOUT)
    assert ended[0].returncode != 0, report(ended)
    assert ended[1].returncode == 1, report(ended)
    assert "BatchError: this batch does not fit" in ended[1].stderr


def test_bad_input_of_the_first_process_ends_both(tmp_path):
    (tmp_path / "file").touch()
    out = f"training_arguments.output_dir={tmp_path / 'file' / 'out'}"  # only the first process writes metrics
    with Processes(["-m", "jzero", "train", "configs/tiny.json", "model.n_layer=1", out, "--devices=1"]) as processes:
        ended = processes.wait(2 * TIMEOUT)
    assert ended[0].returncode == 2, report(ended)
    assert "error: training_arguments.output_dir: cannot write" in ended[0].stderr
    assert ended[1].returncode != 0, report(ended)


def test_bad_input_of_all_processes_ends_them_in_order():
    with Processes(["-m", "jzero", "train", "configs/tiny.json", "model.n_layers=1", "--devices=1"]) as processes:
        ended = processes.wait(TIMEOUT)
    for end in ended:
        assert end.returncode == 2, report(ended)
        assert end.stderr.splitlines()[-1].startswith("error: model has no 'n_layers'"), report(ended)


def test_processes_that_were_started_differently_are_refused():
    with Processes([str(Path(__file__).with_name("disagreeing_worker.py"))]) as processes:
        ended = processes.wait(TIMEOUT)
    for end in ended:
        assert end.returncode != 0, report(ended)
        assert "process 1 has another configuration or seed than process 0" in end.stderr, report(ended)
