"""No process waits for one that has failed, and what failed is said."""

from pathlib import Path

import pytest

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
        ended = processes.succeed(TIMEOUT)
    batches = 'sample_batch.itself is "float32[8,4]" on process 1 and "float32[4,4]" on process 0'
    expected = [
        f"seed is 1 on process 1 and 0 on process 0; {batches}.",
        'config.zero_optimization.stage is "auto" on process 1 and 1 on process 0.',
        'the shape of params/bias is "[2]" on process 1 and "[1]" on process 0; ',
        'the shape of opt_state/0/count is "[]" on process 1 and not given on process 0; ',
        'trainable.bias is "False" on process 1 and "True" on process 0.',
        "the checksum of params.kernel is 3899135062 on process 1 and 3971697493 on process 0.",
    ]
    for end in ended:
        said = end.stdout.splitlines()
        assert len(said) == len(expected), report(ended)
        for sentence, words in zip(said, expected, strict=True):
            assert sentence.startswith(f"The processes were started differently: {words}"), report(ended)


def test_processes_compare_what_they_were_given_before_their_first_collective():
    with Processes([str(Path(__file__).with_name("agreeing_worker.py"))], n=3) as processes:
        ended = processes.wait(TIMEOUT)
    start, end = (
        "The processes were started differently: ",
        ". Start all of them with the same command, files and versions.",
    )
    told = [
        "agreed",
        f"{start}training_arguments.save_steps is 5 on process 1 and 9 on processes 0 and 2{end}",
        f"{start}seed is 2 on process 2, 1 on process 1 and 0 on process 0{end}",
        f"{start}only here is true on process 0 and not given on processes 1 and 2{end}",
    ]
    failed = "Process 1 has failed: no such file"
    assert [process.returncode for process in ended] == [2, 2, 2], report(ended)
    assert [process.stdout.splitlines() for process in ended] == [[*told, failed], told, [*told, failed]], report(ended)


def test_ranks_of_one_command_that_differ_end_at_once_with_the_cause(tmp_path):
    script = """if True:
        import os, sys
        from jzero.cli.program import app
        app([*sys.argv[1:], f"training_arguments.save_steps={5 + int(os.environ['RANK'])}"])
    """
    out = f"training_arguments.output_dir={tmp_path}"
    with Processes(["-c", script, "train", "configs/tiny.json", out, "--devices=1"]) as processes:
        ended = processes.wait(TIMEOUT)
    for end in ended:
        assert end.returncode == 2, report(ended)
        says = "training_arguments.save_steps is 6 on process 1 and 5 on process 0."
        assert f"error: The processes were started differently: {says}" in end.stderr, report(ended)
    assert not list(tmp_path.iterdir())


def test_a_process_that_is_gone_is_a_sentence_and_a_status_that_asks_for_another_try():
    script = """if True:
        import os
        from jzero.launch import initialize_from_environment
        import jax
        import numpy as np
        from jax.experimental import multihost_utils
        initialize_from_environment()
        multihost_utils.process_allgather(np.ones(1))
        if jax.process_index() == 1:
            os._exit(9)
        multihost_utils.process_allgather(np.ones(1))
    """
    with Processes(["-c", script]) as processes:
        ended = processes.wait(TIMEOUT)
    assert [end.returncode for end in ended] == [75, 9], report(ended)
    (said,) = [line for line in ended[0].stderr.splitlines() if not line.startswith("[Gloo]")]
    assert said.startswith("error: Another process of this run has ended, or the network to it is down; "), said


@pytest.mark.full
def test_a_full_disk_is_a_sentence_of_both(tmp_path):
    script = """if True:
        import resource, sys
        from jzero.__main__ import main
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        sys.argv = ["jzero", *sys.argv[1:]]
        main()
    """
    options = ["training_arguments.max_steps=2", f"training_arguments.output_dir={tmp_path}", "--devices=4"]
    with Processes(["-c", script, "train", "configs/tiny.json", *options]) as processes:
        ended = processes.wait(TIMEOUT)
    assert [end.returncode for end in ended] == [2, 2], report(ended)
    for end in ended:
        assert "Traceback" not in end.stderr, report(ended)
        assert f"error: The checkpoint {tmp_path}/checkpoint-2 could not be written: File too large" in end.stderr
