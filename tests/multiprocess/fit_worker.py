"""What each of two processes runs: `jzero.fit` on an iterator of its own, stopped half-way and gone on with.

python fit_worker.py FOLDER: writes FOLDER/whole and FOLDER/parts as `jzero.fit` does.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from flax import nnx

import jzero
from jzero.launch import initialize_from_environment


class Rows:
    """This process's rows; its state is where it is, and which process it is of."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        return {"x": np.full((4, 3), self.at + 10 * jax.process_index(), np.float32)}

    def get_state(self) -> bytes:
        return f"{jax.process_index()} {self.at}{'!' * jax.process_index()}".encode()

    def set_state(self, state: bytes) -> None:
        process, at = state.decode().rstrip("!").split()
        assert int(process) == jax.process_index(), "the state of another process"
        self.at = int(at)


def main(folder: Path) -> None:
    jzero.simulate_devices(2)
    assert initialize_from_environment()
    config = {"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}
    make = lambda: jzero.initialize(
        model=lambda rngs: nnx.Linear(3, 1, rngs=rngs),
        loss_fn=lambda model, batch: (model(batch["x"]) ** 2).mean(),
        config=config,
        sample_batch={"x": np.zeros((4, 3), np.float32)},
    )
    validation = [{"x": np.full((4, 3), 1 + jax.process_index(), np.float32)}]
    jzero.fit(make(), Rows(), {"output_dir": str(folder / "whole"), "max_steps": 6}, validation=validation)
    parts = {"output_dir": str(folder / "parts")}
    jzero.fit(make(), Rows(), {**parts, "max_steps": 3})
    rows = Rows()
    jzero.fit(make(), rows, {**parts, "max_steps": 6}, validation=validation, resume="auto")
    assert rows.at >= 6, "it went on where it was"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
