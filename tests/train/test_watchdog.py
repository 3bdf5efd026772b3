"""When a process that makes no progress ends itself, and what it says."""

import os
import subprocess
import sys

import pytest

from jzero.launch.wire import unpacked
from jzero.train.watchdog import SAVE_PATIENCE, Watchdog


class Clock:
    """One that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.mark.parametrize(
    ("mean", "patience", "limit"), [(0, 1, 300), (20, 1, 300), (40, 1, 400), (40, SAVE_PATIENCE, 2400)]
)
def test_the_limit_is_ten_mean_steps_or_the_least(clock, mean, patience, limit):
    watchdog = Watchdog(300, 3, clock=clock)
    watchdog.begin(mean)
    watchdog.step = 7
    watchdog.enter("waiting for the devices", patience=patience)
    clock.now += limit
    assert watchdog.overdue() is None
    clock.now += 1
    sentence = watchdog.overdue()
    assert sentence.startswith("Process 3 (on ")
    assert f"no progress for {limit + 1} s at step 7, waiting for the devices, where {limit} s is the limit" in sentence
    watchdog.enter("waiting for a batch")
    assert watchdog.overdue() is None


def test_nothing_is_limited_before_the_first_step_and_while_something_compiles(clock):
    watchdog = Watchdog(300, clock=clock)
    watchdog.enter("starting the step")
    clock.now += 1e6
    assert watchdog.overdue() is None
    watchdog.begin(0)
    watchdog.enter("starting the step")
    watchdog.unlimited()
    clock.now += 1e6
    assert watchdog.overdue() is None


STUCK = """
import threading
from jzero.train.watchdog import Watchdog
with Watchdog({least}) as watchdog:
    watchdog.begin(0)
    watchdog.enter("waiting for a batch")
    threading.Event().wait({wait})
print("went on")
"""


def test_a_stuck_process_writes_its_stacks_and_ends_with_75():
    command = [sys.executable, "-c", STUCK.format(least=0.2, wait=600)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 75, ended.stderr
    assert "most recent call first" in ended.stderr
    assert 'File "<string>", line 7 in <module>' in ended.stderr
    assert "at step 0, waiting for a batch, where 0 s is the limit" in ended.stderr.splitlines()[-1]


def test_it_tells_the_agent_what_the_process_does(clock, tmp_path, monkeypatch):
    pipe = tmp_path / "beats"
    os.mkfifo(pipe)
    reads = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    monkeypatch.setenv("JZERO_HEARTBEAT", str(pipe))
    monkeypatch.setenv("JZERO_RANK", "3")
    for least in (300, 0):
        watchdog = Watchdog(least, 3, clock=clock)
        watchdog.beat()
        watchdog.begin(40)
        watchdog.step = 7
        watchdog.enter("saving", patience=2)
        clock.now += 12
        watchdog.beat()
    told = [unpacked(line) for line in os.read(reads, 1 << 16).splitlines()]
    os.close(reads)
    compiling = {"rank": 3, "step": 0, "phase": "", "seconds": 0, "limit": 0}
    saving = {"rank": 3, "step": 7, "phase": "saving", "seconds": 12, "limit": 800}
    assert told == [compiling, saving, compiling, {**saving, "limit": 0}]


def test_zero_seconds_are_no_limit():
    with Watchdog(0) as watchdog:
        watchdog.begin(0)
        assert not watchdog._thread.is_alive()
