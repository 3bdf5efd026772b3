"""A process killed at any moment, also inside a save, goes on from a complete checkpoint to the same bits."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jzero.checkpoint.run import place
from tests.checkpoint import kill_worker

EVENTS_PER_LIFE = 12
TIMEOUT = 120.0


class Life:
    """One run of the worker."""

    def __init__(self, folder: Path, n_steps: int):
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "JAX_COMPILATION_CACHE_DIR": str(folder.parent / "compiled"),  # one compilation serves all lives
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        }
        command = [sys.executable, kill_worker.__file__, str(folder), str(n_steps)]
        self.errors = folder.parent / "stderr"
        with self.errors.open("w") as stderr:
            self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True)

    def next_event(self) -> tuple[str, int]:
        line = self.process.stdout.readline()
        assert line, f"the process ended by itself:\n{self.errors.read_text()}"
        word, number = line.split()
        return word, int(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(TIMEOUT)
        self.process.stdout.close()


def train_with_kills(folder: Path, n_kills: int, n_steps: int) -> bytes:
    """Kills the worker `n_kills` times, a third of them while it saves, then lets it end; returns its parameters."""
    chance, reached = random.Random(0), 0
    for kill in range(n_kills):
        life = Life(folder, n_steps)
        try:
            word, first = life.next_event()
            assert word == "starts"
            assert first >= reached, f"after kill {kill}, step {first} is less than the {reached} that were saved"
            n_events = chance.randrange(1, EVENTS_PER_LIFE)
            while n_events > 0 or (kill % 3 == 0 and word != "saves"):
                word, step = life.next_event()
                reached = step if word == "saved" else reached
                n_events -= 1
            time.sleep(chance.uniform(0, 0.03))
        finally:
            life.kill()
    life = Life(folder, n_steps)
    try:
        while life.next_event() != ("done", n_steps):
            pass
        assert life.process.wait(TIMEOUT) == 0, life.errors.read_text()
    finally:
        life.kill()
    assert [step for step, _ in place.complete_in(folder)] == [n_steps - 1, n_steps]
    assert {entry.name for entry in folder.iterdir()} == {
        "params",
        f"checkpoint-{n_steps - 1}",
        f"checkpoint-{n_steps}",
    }
    return (folder / "params").read_bytes()


@pytest.mark.parametrize("n_kills", [5, pytest.param(50, marks=pytest.mark.full)])
def test_a_run_that_is_killed_ends_like_one_that_is_not(tmp_path, n_kills):
    n_steps = EVENTS_PER_LIFE * n_kills + 2
    killed = train_with_kills(tmp_path / "killed", n_kills, n_steps)
    assert killed == train_with_kills(tmp_path / "whole", 0, n_steps)
