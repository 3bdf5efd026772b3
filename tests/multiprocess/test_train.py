"""Two processes of 4 devices train like one process of 8, through a checkpoint and back."""

import numpy as np
import pytest

from tests.multiprocess import train_worker
from tests.multiprocess.processes import Processes, report

TIMEOUT = 240
"""Seconds; what the workers need when they have half of a busy core each."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What two processes wrote: `CASE-RANK.npz`, and a checkpoint `CASE`; in a folder that looks like a pattern."""
    folder = tmp_path_factory.mktemp("two_processes") / "run[1]"
    folder.mkdir()
    with Processes([train_worker.__file__, str(folder)]) as processes:
        ended = processes.succeed(TIMEOUT)
    assert "expected (16,): train_batch_size 32 over 2 processes" in ended[1].stdout, report(ended)
    return folder


@pytest.fixture(scope="module", params=train_worker.CASES)
def trained(request, folder):
    """For each case: its name, an engine of one process, what that computed, and what each of the two processes did."""
    engine = train_worker.make_engine(request.param)
    alone = train_worker.train(engine)
    together = [dict(np.load(folder / f"{request.param}-{rank}.npz")) for rank in range(2)]
    return request.param, engine, alone, together


def test_both_processes_see_the_same(trained):
    _, _, alone, (first, second) = trained
    assert first.keys() == second.keys() == alone.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


def test_two_processes_compute_what_one_does(trained):
    case, _, alone, (together, _) = trained
    fp16 = case.endswith("fp16")
    assert len(together["loss"]) == train_worker.STEPS + train_worker.STEPS_AFTER_LOAD
    assert together["overflow"].any() == fp16
    assert together["applied_steps"][-1] >= 3
    for name in alone:
        relative, absolute = (2e-3, 1e-3) if fp16 else (1e-6, 1e-6 if name.startswith("params.") else 0)
        # An overflow may show as infinity or, after infinity minus infinity, as NaN.
        got, expected = (np.nan_to_num(result[name], nan=np.inf) for result in (together, alone))
        np.testing.assert_allclose(got, expected, rtol=relative, atol=absolute, err_msg=name)


def test_one_process_reads_the_checkpoint_of_two(trained, folder):
    case, engine, _, _ = trained
    assert engine.load_checkpoint(folder / case) == {"next_batch": train_worker.STEPS}
    assert int(engine.state.step) == train_worker.STEPS
    metrics = engine.train_batch(train_worker.batch(train_worker.STEPS))
    with np.load(folder / f"{case}-0.npz") as together:
        assert float(metrics["loss"]) == pytest.approx(
            together["loss"][train_worker.STEPS], rel=2e-3 if case.endswith("fp16") else 1e-6
        )
