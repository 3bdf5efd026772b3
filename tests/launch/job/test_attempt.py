"""What an attempt makes of its agents' words, without any agent."""

import signal
import time
from queue import SimpleQueue

import pytest

from jzero.launch.agent.orders import Orders, Process
from jzero.launch.hosts.hostfile import Host
from jzero.launch.job import attempt as module
from jzero.launch.job.attempt import Attempt
from jzero.launch.job.gathering import Present
from jzero.launch.job.layout import Node
from jzero.launch.job.link import Arrived
from jzero.launch.job.plan import Job

ORDERS = Orders(("true",), "/", {}, (), 2, "")


class FakeLink:
    """The link to an agent that hears, and says what the test says."""

    why_gone = "ssh ended with status 255: Connection reset"

    def __init__(self, node: int):
        self.node, self.host, self.sent, self.heard = node, f"node{node}", [], time.monotonic()

    def send(self, message) -> None:
        self.sent.append(message)


def run(*arrivals: tuple[int, dict], master_port: int | None = 29500):
    """An attempt of two hosts with a process each, of which these words arrive."""
    hosts = (Host("node0"), Host("node1"))
    links = [FakeLink(number) for number in range(len(hosts))]
    present = [Present(links[i], Node(host, 1), {"address": f"10.0.0.{i}"}) for i, host in enumerate(hosts)]
    queue: SimpleQueue[Arrived] = SimpleQueue()
    for node, message in arrivals:
        queue.put(Arrived(node, message))
    layout = [(Process(i, 0, (i,)),) for i in range(len(hosts))]
    shown: list[str] = []
    made = Attempt(
        Job(("true",), hosts, grace=0.0, master_port=master_port),
        present,
        layout,
        queue,
        show=lambda rank, text: shown.append(f"{rank} {text}"),
        say=shown.append,
    )
    return made.run(ORDERS), links, shown


def ended(node: int, status: int, tail=()) -> tuple[int, dict]:
    return node, {"event": "exit", "rank": node, "status": status, "pid": 7, "tail": list(tail)}


def beat(node: int, step: int, phase: str, seconds: float = 1.0, limit: float = 300.0) -> tuple[int, dict]:
    said = {"rank": node, "step": step, "phase": phase, "seconds": seconds, "limit": limit}
    return node, {"event": "beat", "beat": said}


def orders_of(link: FakeLink) -> list[str]:
    return [message["do"] for message in link.sent if message["do"] != "ping"]


def test_all_processes_are_started_with_the_same_first_host():
    result, links, shown = run(ended(1, 0), (0, {"event": "line", "rank": 0, "text": "hello"}), ended(0, 0))
    assert result.failure is None
    assert shown == ["0 hello"]
    for node, link in enumerate(links):
        (start,) = [message["orders"] for message in link.sent if message["do"] == "start"]
        assert (start["coordinator"], start["node"]) == ("10.0.0.0:29500", node)
        assert [process["rank"] for process in start["processes"]] == [node]


def test_the_port_is_picked_by_the_first_host():
    _, links, _ = run((0, {"event": "port", "port": 4711}), ended(0, 0), ended(1, 0), master_port=None)
    assert orders_of(links[0]) == ["port", "start"]
    assert links[1].sent[0]["orders"]["coordinator"] == "10.0.0.0:4711"


def test_the_first_failure_counts_and_all_are_ended():
    result, links, _ = run(ended(1, -9, ["last words"]), ended(0, 1))
    assert result.failure.sentence == "Process 1 (on node1, GPU 1, pid 7) was ended by SIGKILL."
    assert (result.failure.status, result.failure.tail, result.exited) == (137, ("last words",), False)
    assert all(orders_of(link)[-1] == "end" for link in links)


def test_of_processes_that_were_stuck_the_one_behind_is_named():
    waits = "waiting for the devices"
    result, _, _ = run(beat(0, 8, waits), beat(1, 7, "waiting for a batch"), ended(0, 75), ended(1, -9))
    assert result.failure.status == 75
    said = "Process 0 (on node0, GPU 0, pid 7) ended with status 75. Process 1 (on node1, GPU 1) is behind: it is at "
    assert result.failure.sentence.startswith(f"{said}step 7, waiting for a batch for 1 s, where the others are at")


def test_a_process_that_cannot_end_itself_is_ended():
    result, links, _ = run(beat(0, 7, "saving", seconds=500.0), ended(0, -9), ended(1, -15))
    assert result.failure.status == 75
    assert result.failure.sentence.startswith("Process 0 (on node0, GPU 0) is stopped: it has said nothing for ")
    assert orders_of(links[1])[-1] == "end"


def test_a_lost_host_is_a_failure():
    result, _, _ = run((1, {"event": "gone"}), ended(0, -15))
    assert result.failure.status == 75
    says = "node1 is lost with process 1: its agent is gone, ssh ended with status 255: Connection reset."
    assert result.failure.sentence == says


def test_an_agent_that_says_nothing_is_lost(monkeypatch):
    monkeypatch.setattr(module, "SILENCE_SECONDS", -1.0)
    result, _, _ = run((0, {"event": "alive"}))
    assert result.failure.sentence.startswith("node0 is lost with process 0: its agent has said nothing for ")


@pytest.mark.parametrize("whose", [-1, 1])
def test_a_signal_is_handed_on_once(whose):
    term = {"event": "signal", "number": int(signal.SIGTERM)}
    result, links, _ = run((whose, term), (0, term), ended(0, 143), ended(1, -15))
    assert (result.failure, result.signal) == (None, signal.SIGTERM)
    for link in links:
        assert [m["number"] for m in link.sent if m["do"] == "signal"] == [signal.SIGTERM]
        assert "end" not in orders_of(link)


def test_processes_that_were_preempted_may_end_by_themselves():
    result, links, _ = run(ended(1, 143), ended(0, 143))
    assert (result.failure.status, result.exited, result.signal) == (143, True, 0)
    assert not any("end" in orders_of(link) for link in links)
