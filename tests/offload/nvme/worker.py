"""A run that is killed in its third step, and taken up by the next.

`python -m tests.offload.nvme.worker FOLDER COMPILED POINT...`: for each point a process of its own, one after the
other, goes on from the last step that was taken.
"""

import os
import signal
import sys
from pathlib import Path

import jzero
from jzero.offload.nvme import disk, folder
from tests.offload.nvme.case import batches, keep_compiled, make_engine

WRITES_BEFORE = 3


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point):
    """Makes this process kill itself at a point of the next step."""
    if point == "write":
        write, calls = disk.Disk.write, []
        disk.Disk.write = lambda *args: die() if len(calls) == WRITES_BEFORE else calls.append(write(*args))
    elif point == "commit":
        folder.os.fsync = die
    elif point == "committed":
        commit = folder.Folder.commit
        folder.Folder.commit = lambda *args: die(commit(*args))


def run(root, point):
    """Trains up to the third step, and does not come back from it."""
    engine = make_engine(root)
    done = engine.recover() if any(root.glob("*/*/generation-?.whole.npz")) else 0
    print(f"{point} found {done}", flush=True)
    for step, batch in enumerate(batches(3)):
        if step == 2:
            arm(point)
        if step >= done:
            engine.train_batch(batch)


def main():
    """Starts one process after the other, before any has started threads."""
    root, compiled, *points = sys.argv[1:]
    for point in points:
        if not (child := os.fork()):
            jzero.simulate_devices(8)
            keep_compiled(compiled)
            run(Path(root), point)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, f"{point} ended with {status}"


if __name__ == "__main__":
    main()
