"""A save that fails is a sentence, and nothing beside it; whatever else goes wrong is printed as before."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from jzero.checkpoint.format.silence import _without_late_answers

ROOT = Path(__file__).parents[3]
FULL_DISK = """
import resource, sys
from pathlib import Path
import jzero; jzero.simulate_devices(8)
from tests.checkpoint.test_faults import save
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
for i in range(3):
    try:
        save(Path(sys.argv[1]) / "c", i)
    except jzero.CheckpointError as error:
        print(error)
"""


@pytest.mark.full
def test_a_full_disk_is_one_sentence_each_time(tmp_path):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [f"The checkpoint {tmp_path / 'c'} could not be written: File too large."] * 3
    assert "Traceback" not in done.stderr


def failure(call):
    try:
        call()
    except Exception as error:
        return SimpleNamespace(exc_value=error, exc_traceback=error.__traceback__.tb_next)


def test_only_answers_to_a_loop_that_is_closed_are_left_out():
    printed, loop = [], asyncio.new_event_loop()
    hook = _without_late_answers(printed.append)
    loop.close()
    late = failure(lambda: loop.call_soon_threadsafe(print))
    late.exc_traceback = late.exc_traceback.tb_next  # as if it were called from outside of Python
    others = [failure(lambda: loop.call_soon(print)), failure(lambda: 1 / 0)]
    others.append(SimpleNamespace(exc_value=RuntimeError("Event loop is closed"), exc_traceback=None))
    for unraisable in (late, *others):
        hook(unraisable)
    assert printed == others
