"""Starts a few JAX processes of simulated devices on this machine and waits for them, never for ever."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]


class Ended(NamedTuple):
    """How a process ended."""

    returncode: int
    stdout: str
    stderr: str


class Processes:
    """Processes that know each other by the variables that DeepSpeed's launcher sets.

    A context manager, so that none outlives the test.

    Args:
        command: what follows `python`, the same for every process.
        n: number of processes.
    """

    def __init__(self, command: Sequence[str], n: int = 2):
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JAX_NUMPY_DTYPE_PROMOTION": "strict",  # as in conftest.py
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "WORLD_SIZE": str(n),
        }
        self._running = []
        for rank in range(n):
            # Files, not pipes: a process whose pipe is full would wait for a reader, and the others for it.
            outputs = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed by __exit__)
            process = subprocess.Popen(
                [sys.executable, "-u", *command],
                env=environment | {"RANK": str(rank)},
                cwd=ROOT,
                stdout=outputs[0],
                stderr=outputs[1],
            )
            self._running.append((process, *outputs))

    def wait(self, timeout: float) -> list[Ended]:
        """Waits for all of them.

        Args:
            timeout: seconds for all together; those that still run then are killed, and the test fails.
        """
        deadline = time.monotonic() + timeout
        late = []
        for rank, (process, *_) in enumerate(self._running):
            try:
                process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(rank)
        self._kill()
        ended = [Ended(process.returncode, _text(out), _text(err)) for process, out, err in self._running]
        assert not late, f"processes {late} still ran after {timeout} s\n{report(ended)}"
        return ended

    def wait_for(self, rank: int, timeout: float) -> Ended:
        """Waits for one of them only."""
        process, out, err = self._running[rank]
        process.wait(timeout)
        return Ended(process.returncode, _text(out), _text(err))

    def send_signal(self, rank: int, number: int) -> None:
        """Sends a signal to one of them."""
        self._running[rank][0].send_signal(number)

    def succeed(self, timeout: float) -> list[Ended]:
        """Waits for all of them to return 0."""
        ended = self.wait(timeout)
        assert not any(end.returncode for end in ended), report(ended)
        return ended

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *exception: object) -> None:
        self._kill()
        for _, *outputs in self._running:
            for output in outputs:
                output.close()

    def _kill(self) -> None:
        for process, *_ in self._running:
            if process.poll() is None:
                process.kill()
                process.wait()


def report(ended: Sequence[Ended]) -> str:
    """Everything the processes wrote, for the message of a failed test."""
    return "\n".join(
        f"----- process {rank} returned {end.returncode}\n{end.stdout}\n{end.stderr}" for rank, end in enumerate(ended)
    )


def _text(file) -> str:
    file.seek(0)
    return file.read()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
