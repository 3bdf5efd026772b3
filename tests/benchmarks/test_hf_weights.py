"""Two processes read a checkpoint of 50 MB: each holds its shards and little more, as the benchmark measures it."""

import pytest

from tests.benchmarks.test_scripts import run


@pytest.mark.full
def test_memory_is_that_of_the_shards():
    found = run("hf_weights.py", "--megabytes=50")
    assert len(found["load"]) == len(found["numpy"]) == 2
    for process in found["load"]:
        assert process["held"] == pytest.approx(50e6, rel=0.2)  # half of it, in float32
        assert process["grown"] < process["held"] + 80e6
    assert found["load"][0]["export_grown"] < found["load"][0]["largest_leaf"] + 150e6
