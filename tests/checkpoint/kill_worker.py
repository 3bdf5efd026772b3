"""A training process that says what it does, line by line, so that a test can kill it at any moment.

python kill_worker.py FOLDER N_STEPS: saves after every step, goes on from the newest checkpoint, and in the end writes
the bytes of its parameters to FOLDER/params.
"""

import os
import sys
from pathlib import Path

import jax
import numpy as np

import jzero
from jzero.checkpoint import Checkpoints, load_newest

ROWS = 4


class Model:
    """Enough parameters that a save takes a while."""

    def init(self, key, batch):
        return {"w": jax.random.normal(key, (8, 4)), "ballast": jax.random.normal(key, (1 << 18,))}


def loss_fn(params, batch):
    return ((batch["x"] @ params["w"]) ** 2).mean() + (params["ballast"] ** 2).mean()


def batch(index: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(index).standard_normal((ROWS, 8), np.float32)}


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def main(folder: Path, n_steps: int) -> None:
    jzero.simulate_devices(2)
    engine = jzero.initialize(
        model=Model(),
        loss_fn=loss_fn,
        config={
            "train_batch_size": ROWS,
            "zero_optimization": {"stage": 2},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        },
        sample_batch=batch(0),
    )
    found = load_newest(folder, engine.load_checkpoint)
    first = found[1]["next_batch"] if found else 0
    say("starts", first)
    with Checkpoints(engine, folder, max_to_keep=2) as checkpoints:
        for step in range(first, n_steps):
            engine.train_batch(batch(step))
            say("saves", step + 1)
            checkpoints.save(step + 1, {"next_batch": step + 1})
            if step % 2:
                checkpoints.finish()
                say("saved", step + 1)
    whole = jax.tree.map(np.asarray, engine.params)
    (folder / "params").write_bytes(b"".join(x.tobytes() for x in jax.tree.leaves(whole)))
    say("done", n_steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
