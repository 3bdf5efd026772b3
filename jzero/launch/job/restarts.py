"""What the end of an attempt leads to: whether the job is started again, what it counts, and with which command."""

import sys
from collections.abc import Sequence
from typing import NamedTuple

from jzero.launch.job.plan import Ended
from jzero.launch.statuses import MISTAKE, NOT_FOUND, PREEMPTED


class Next(NamedTuple):
    """What follows an attempt.

    Attributes:
        again: whether the job is started again.
        counts: whether that is one of `--max-restarts`.
        why: for people.
    """

    again: bool
    counts: bool
    why: str


def what_follows(ended: Ended, *, counted: int, most: int, saved: int) -> Next:
    """Decides whether a job is started again.

    Args:
        ended: how the attempt ended, with a failure.
        counted: how many restarts have counted so far.
        most: how many may.
        saved: the step of the newest checkpoint that the attempt has completed; -1 if it has none.

    Example:
        >>> from jzero.launch.job.plan import Failure
        >>> what_follows(Ended(Failure(137, "it was killed")), counted=1, most=2, saved=-1)
        Next(again=True, counts=True, why='restart 2 of at most 2 without a new checkpoint')
        >>> what_follows(Ended(Failure(2, "a wrong key")), counted=0, most=2, saved=-1).again
        False
    """
    assert ended.failure is not None
    status = ended.failure.status
    if ended.signal:
        return Next(False, False, "the launcher was asked to stop")
    if status == MISTAKE:
        return Next(False, False, "starting again does not help where something is written wrongly")
    if status == NOT_FOUND:
        return Next(False, False, "there is nothing to start")
    if most == 0:
        return Next(False, False, "")
    if status in PREEMPTED and ended.exited:
        return Next(True, False, "it was preempted and has saved, which does not count")
    if saved >= 0:
        return Next(True, False, f"it has saved step {saved}, so this does not count")
    if counted < most:
        return Next(True, True, f"restart {counted + 1} of at most {most} without a new checkpoint")
    return Next(
        False, True, f"it was started again {most} times without a new checkpoint, the most that --max-restarts allows"
    )


def resuming(command: Sequence[str], *, begun: bool, saved: bool) -> tuple[str, ...]:
    """The command of the next attempt: `jzero train` goes on with what the last one has left.

    Args:
        command: of the first attempt.
        begun: whether an attempt has begun a step, and so made the folder its own.
        saved: whether an attempt has completed a checkpoint.

    Example:
        >>> train = (sys.executable, "-m", "jzero", "train", "run.json")
        >>> resuming([*train, "--overwrite"], begun=True, saved=False)[4:]
        ('run.json', '--resume', 'auto')
        >>> resuming([*train, "--resume", "old/checkpoint-7"], begun=True, saved=False)[4:]
        ('run.json', '--resume', 'old/checkpoint-7')
        >>> resuming(["python", "mine.py"], begun=True, saved=True)
        ('python', 'mine.py')
    """
    if tuple(command[:4]) != (sys.executable, "-m", "jzero", "train"):
        return tuple(command)
    overwrites = "--overwrite" in command
    begins_elsewhere = any(word.split("=")[0] == "--resume" for word in command)
    if (overwrites and not begun) or (begins_elsewhere and not saved):
        return tuple(command)
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word == "--resume":
            next(words, None)
        elif word != "--overwrite" and not word.startswith("--resume="):
            kept.append(word)
    return (*kept, "--resume", "auto")
