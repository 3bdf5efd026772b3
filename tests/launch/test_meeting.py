"""Processes that meet, as threads of one: who is missing and what does not fit is said to all of them."""

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from jzero.errors import ConfigError, LaunchError
from jzero.launch import meeting
from jzero.launch.meeting import Arrival, Neighbours, meet, misfit, neighbours

FIRST = Arrival(0, 3, "job 1", "host", 100, "machine", None)


@pytest.fixture
def place():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(meeting, "REPORT_SECONDS", 0.1)
    monkeypatch.setattr(meeting, "_RETRY_SECONDS", 0.01)


def all_meet(place: str, arrivals: list[Arrival], seconds: float = 20) -> list[Neighbours | Exception]:
    def come(own: Arrival):
        try:
            return meet(place, own, seconds)
        except (ConfigError, LaunchError) as error:
            return error

    with ThreadPoolExecutor(len(arrivals)) as threads:
        return list(threads.map(come, arrivals))


def test_processes_learn_who_is_on_their_machine(place, quick):
    second, third = replace(FIRST, rank=1, machine="other"), replace(FIRST, rank=2, visible="1")
    assert all_meet(place, [third, FIRST, second]) == [
        Neighbours(2, 1, False),
        Neighbours(2, 0, False),
        Neighbours(1, 0, True),
    ]


def test_another_number_of_processes_is_told_to_all(place, quick):
    told = all_meet(place, [FIRST, replace(FIRST, rank=1, n_processes=2)])
    assert [type(error) for error in told] == [ConfigError] * 2
    assert "3 to process 0 (on host, pid 100) and 2 to process 1 (on host, pid 100)" in str(told[0])
    assert str(told[0]) == str(told[1])


def test_a_rank_given_twice_is_told_to_all(place, quick):
    told = all_meet(place, [FIRST, replace(FIRST, rank=1, pid=7), replace(FIRST, rank=1, pid=8)])
    assert [type(error) for error in told] == [ConfigError] * 3
    assert "Two processes were given rank 1: on host, pid " in str(told[0])


def test_who_is_missing_is_named_meanwhile_and_at_the_end(place, quick, capsys):
    here, late = all_meet(place, [FIRST, replace(FIRST, rank=2)], seconds=0.5)
    port = place.partition(":")[2]
    missing = f"process 1 of 3, which must come to port {port} of host"
    assert f"Still waiting for {missing}.\n" in capsys.readouterr().err
    assert isinstance(here, LaunchError)
    assert str(here) == str(late) == f"Waited 0 s for {missing}."


def test_a_process_that_finds_nobody_says_where_it_looks(place, quick, capsys):
    with pytest.raises(LaunchError, match=f"Process 1 waited 0 s for process 0 at {place}: Connection refused"):
        meet(place, replace(FIRST, rank=1), 0.5)
    assert f"Process 1 is still waiting for process 0 at {place}: Connection refused.\n" in capsys.readouterr().err


def test_an_unknown_host_is_named(quick):
    with pytest.raises(LaunchError, match=r"process 0 at nowhere\.invalid:9: this name is not known"):
        meet("nowhere.invalid:9", replace(FIRST, rank=1), 0.1)


def test_a_port_in_use_is_said(quick):
    with socket.create_server(("", 0)) as taken, pytest.raises(LaunchError, match=r"cannot listen at port \d+ of"):
        meet(f"127.0.0.1:{taken.getsockname()[1]}", FIRST, 5)


def test_strangers_and_those_of_an_earlier_start_are_not_counted(place, quick):
    first, second = replace(FIRST, n_processes=2), replace(FIRST, rank=1, n_processes=2)
    with ThreadPoolExecutor(2) as threads:
        found = threads.submit(meet, place, first, 20)
        for line in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"rank": 1}\n', b"x" * 70000):
            with connected(place) as stranger, contextlib.suppress(ConnectionError):
                stranger.sendall(line)
                assert stranger.recv(1) == b""
        with pytest.raises(LaunchError, match="perhaps another program, or another start of the job"):
            meet(place, replace(second, start="job 0"), 0.2)
        assert meet(place, second, 20) == Neighbours(2, 1, True)
        assert found.result() == Neighbours(2, 0, True)


def test_one_that_leaves_may_come_again(place, quick):
    second, third = replace(FIRST, rank=1), replace(FIRST, rank=2)
    with ThreadPoolExecutor(3) as threads:
        found = threads.submit(meet, place, FIRST, 20)
        with connected(place) as gone:
            meeting._send(gone, vars(second))
        others = [threads.submit(meet, place, each, 20) for each in (replace(second, pid=5), third)]
        assert [each.result().rank for each in (found, *others)] == [0, 1, 2]


def connected(place: str) -> socket.socket:
    """A connection to the first process, as soon as it listens."""
    host, _, port = place.partition(":")
    while True:
        try:
            return socket.create_connection((host, int(port)), timeout=5)
        except ConnectionRefusedError:
            continue


def test_what_fits_is_no_misfit():
    assert misfit(FIRST, replace(FIRST, rank=1), None) is None
    assert neighbours([FIRST], FIRST) == Neighbours(1, 0, True)
