"""`jzero.fit` under two processes: each has an iterator of its own, and a checkpoint the states of both."""

import json

import pytest

from tests.multiprocess import fit_worker
from tests.multiprocess.processes import Processes


@pytest.mark.full
def test_each_process_goes_on_with_its_own_rows(tmp_path):
    with Processes([fit_worker.__file__, str(tmp_path)]) as processes:
        processes.succeed(180)
    read = lambda name: [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    figures = lambda lines: [(line["step"], line.get("loss"), line.get("validation_loss")) for line in lines]
    whole, parts = figures(read("whole")), figures(read("parts"))
    assert parts == whole
    assert len(whole) == 7
