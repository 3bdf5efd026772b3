"""Who is behind, what follows an end, which processes run where: pure functions."""

import signal
import sys

import pytest

from jzero.errors import ConfigError
from jzero.launch.agent.orders import Process
from jzero.launch.hosts.hostfile import Host
from jzero.launch.job.board import MARGIN_SECONDS, Board
from jzero.launch.job.layout import Node, fitting, processes_of
from jzero.launch.job.plan import Ended, Failure
from jzero.launch.job.restarts import resuming, what_follows

WAITS, STARTS, BATCH = (
    "waiting for the devices",
    "starting the step or waiting for the one before",
    "waiting for a batch",
)


def board(*beats: tuple[int, str], at: float = 100.0, silent: int | None = None) -> Board:
    """A board on which each process was last heard at a time, at a step and in a phase; one of them long before."""
    found = Board()
    for rank, (step, phase) in enumerate(beats):
        when = at - 50 if rank == silent else at
        found.hear({"rank": rank, "step": step, "phase": phase, "seconds": 40.0, "limit": 300.0}, when)
    return found


@pytest.mark.parametrize(
    ("seen", "rank", "says"),
    [
        (
            board((7, STARTS), (6, BATCH), (7, WAITS)),
            1,
            f"it is at step 6, {BATCH} for 42 s, where the others are at step",
        ),
        (board((7, STARTS), (7, WAITS), (7, BATCH)), 2, "where the others wait for the devices"),
        (board((7, WAITS), (7, WAITS), (7, "saving")), 2, "at step 7, saving for 42 s"),
        (board((7, WAITS), (7, WAITS), silent=1), 1, "it has said nothing for 52 s, last at step 7"),
        (board((7, WAITS), (6, WAITS)), 1, "at step 6"),
        (board((7, WAITS), (6, WAITS), (6, BATCH)), 2, "at step 6"),
        (board((0, ""), (1, WAITS)), 0, "at step 0, compiling for 42 s"),
    ],
)
def test_the_process_that_the_others_wait_for(seen, rank, says):
    found = seen.behind(102.0)
    assert found[0] == rank
    assert says in found[1]


def test_where_nobody_can_be_named_nobody_is():
    assert board((7, WAITS), (7, WAITS)).behind(102.0) is None
    assert board((7, BATCH), (7, BATCH)).behind(102.0) is None
    assert board((7, BATCH)).behind(102.0) is None


def test_a_process_that_cannot_end_itself_is_found_after_its_own_limit():
    seen = board((7, WAITS))
    assert seen.frozen(100 + 260 + MARGIN_SECONDS) is None
    assert seen.frozen(101 + 260 + MARGIN_SECONDS) == 0


@pytest.mark.parametrize(
    ("ended", "saved", "again", "counts"),
    [
        (Ended(Failure(2, "")), 5, False, False),
        (Ended(Failure(127, "")), 5, False, False),
        (Ended(Failure(75, "")), -1, True, True),
        (Ended(Failure(75, "")), 20, True, False),
        (Ended(Failure(137, ""), exited=False), -1, True, True),
        (Ended(Failure(143, "")), -1, True, False),
        (Ended(Failure(143, ""), exited=False), -1, True, True),
        (Ended(Failure(1, ""), signal=signal.SIGTERM), 5, False, False),
    ],
)
def test_what_follows_an_attempt(ended, saved, again, counts):
    follows = what_follows(ended, counted=0, most=1, saved=saved)
    assert (follows.again, follows.counts) == (again, counts)
    assert not what_follows(ended, counted=0, most=0, saved=saved).again
    if counts:
        assert not what_follows(ended, counted=1, most=1, saved=saved).again


TRAIN = (sys.executable, "-m", "jzero", "train", "run.json")


@pytest.mark.parametrize(
    ("options", "begun", "saved", "then"),
    [
        ([], False, False, ["--resume", "auto"]),
        (["--overwrite"], False, False, ["--overwrite"]),
        (["--overwrite"], True, False, ["--resume", "auto"]),
        (["--resume", "auto"], True, True, ["--resume", "auto"]),
        (["--resume=old"], True, False, ["--resume=old"]),
        (["--resume=old", "a=1"], True, True, ["a=1", "--resume", "auto"]),
        (["--weights", "w", "--devices", "2"], True, True, ["--weights", "w", "--devices", "2", "--resume", "auto"]),
    ],
)
def test_the_next_command_goes_on_with_what_is_there(options, begun, saved, then):
    assert resuming([*TRAIN, *options], begun=begun, saved=saved) == (*TRAIN, *then)


def test_processes_and_their_gpus():
    eight, two = Node(Host("a"), 8), Node(Host("b", (1, 3)), 4)
    assert [len(some) for some in processes_of([eight, two])] == [8, 2]
    assert processes_of([two]) == [(Process(0, 0, (1,)), Process(1, 1, (3,)))]
    assert processes_of([eight], 2) == [(Process(0, 0, (0, 1, 2, 3)), Process(1, 1, (4, 5, 6, 7)))]
    assert processes_of([Node(Host("c", (0, 1)), 0)]) == [(Process(0, 0), Process(1, 1))]
    assert processes_of([Node(Host("c"), 0)], 3)[0][2] == Process(2, 2)
    with pytest.raises(ConfigError, match="a gives 8 GPUs, which 3 processes cannot share evenly"):
        processes_of([eight], 3)
    with pytest.raises(ConfigError, match="d has 2 GPUs that can be seen there, and slot 2 is asked for"):
        processes_of([Node(Host("d", (0, 1, 2)), 2)])


def test_hosts_are_left_out_where_the_batch_would_not_divide():
    assert fitting([8, 8, 8], 32, 1) == 2
    assert fitting([8, 8, 8], 32, 3) == 0
    assert fitting([4, 2], 12, 1) == 2
