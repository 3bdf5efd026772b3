"""The connection to an agent lives on while nobody takes in what it brings."""

import time
from queue import SimpleQueue

from jzero.launch.job import link as module
from jzero.launch.job.link import Arrived, Link


def test_an_agent_is_told_that_the_launcher_is_there_whatever_that_waits_for(monkeypatch):
    monkeypatch.setattr(module, "PING_SECONDS", 0.01)
    arrivals: SimpleQueue[Arrived] = SimpleQueue()
    link = Link(0, "here", ["head", "-n", "1"], arrivals)
    assert arrivals.get(timeout=10) == Arrived(0, {"do": "ping"})
    link.close()
    link.wait(time.monotonic() + 10)
