"""What a run's metrics say of its speed, by a clock of the test's own."""

from types import SimpleNamespace

import numpy as np
import pytest

from jzero.observe import model_flops
from jzero.train import pace
from tests.helpers import batches, build


@pytest.fixture
def clock(monkeypatch):
    times = iter([10.0, 12.0, 13.0, 100.0, 104.0])
    monkeypatch.setattr(pace, "time", SimpleNamespace(monotonic=times.__next__))


@pytest.fixture(scope="module")
def engine():
    return build(3, batches(1, 8)[0])


def test_steps_are_timed_from_end_to_end_and_what_comes_between_is_left_out(engine, clock):
    seen = pace.Pace(engine, per_step=800, unit="tokens")
    assert seen.step_ended() == {}  # it counts the compilation
    flops = model_flops(engine.functional).step / 8
    expected = {"step_seconds": 2.0, "tokens_per_second": 400.0, "model_tflops_per_device": flops / 2.0 / 1e12}
    assert seen.step_ended() == expected
    assert seen.step_ended() == pytest.approx(
        {
            "step_seconds": 1.0,
            "tokens_per_second": 800 / 1.9,
            "model_tflops_per_device": flops / 1.9 / 1e12,
        }
    )
    seen.restart()
    assert seen.step_ended() == {}
    assert seen.step_ended()["step_seconds"] == 4.0


def test_mfu_is_there_where_the_peak_is_known(engine, clock, monkeypatch):
    monkeypatch.setattr(pace, "peak_flops", lambda kind, precision: 1e9)
    seen = pace.Pace(engine, per_step=8, unit="samples")
    seen.step_ended()
    found = seen.step_ended()
    assert found["mfu"] == pytest.approx(found["model_tflops_per_device"] * 1e12 / 1e9)
    assert found["samples_per_second"] == 4.0


def test_a_loss_that_cannot_be_counted_is_said_and_stops_nothing(engine, clock, monkeypatch, caplog):
    def refuse(functional):
        raise ValueError("not twice\nby any means")

    monkeypatch.setattr(pace, "model_flops", refuse)
    seen = pace.Pace(engine, per_step=8, unit="samples")
    found = [seen.step_ended() for _ in range(3)]
    assert [sorted(metrics) for metrics in found[1:]] == [["samples_per_second", "step_seconds"]] * 2
    assert caplog.messages == ["the model's flops cannot be counted: not twice"]
    assert np.isfinite(found[-1]["step_seconds"])
