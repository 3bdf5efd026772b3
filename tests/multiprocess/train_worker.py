"""What every process of the multi-process test runs, and the test itself alone on 8 devices, for comparison.

python train_worker.py FOLDER: writes FOLDER/CASE-RANK.npz.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils

import jzero
from jzero.launch import initialize_from_environment

N_MICRO, ROWS, VOCAB = 2, 32, 131
STEPS, STEPS_AFTER_LOAD = 5, 2
N_DEVICES_EACH = 4
CASES: dict[str, dict[str, Any]] = {
    "stage1-fp32": {"zero_optimization": {"stage": 1}},
    "stage3-fp32": {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 100}},
    # A scale so large that some steps overflow: both processes must skip the same ones.
    "stage2-fp16": {
        "zero_optimization": {"stage": 2},
        "fp16": {"enabled": True, "initial_scale_power": 17, "hysteresis": 1},
    },
}


class Net(nnx.Module):
    """What may differ between processes: random streams, batch statistics, a leaf (`embed`) that needs padding."""

    def __init__(self, rngs: nnx.Rngs):
        self.embed = nnx.Param(jax.random.normal(rngs.params(), (VOCAB, 130)))
        self.hidden = nnx.Linear(130, 32, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(32, dtype=jnp.float32, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(32, VOCAB, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """`int32[B]` -> logits `[B, VOCAB]`."""
        x = self.hidden(self.embed[tokens])
        x = nnx.relu(self.norm(x).astype(x.dtype))
        return self.out(self.dropout(x))


def loss_fn(model: Net, batch: dict[str, jax.Array]) -> jzero.Mean:
    """Cross entropy, weighted row by row."""
    log_probs = jax.nn.log_softmax(model(batch["tokens"]).astype(jnp.float32))
    losses = -jnp.take_along_axis(log_probs, batch["labels"][:, None], axis=1)[:, 0]
    weights = batch["weights"].astype(jnp.float32)
    return jzero.Mean((losses * weights).sum(), weights.sum())


def make_engine(case: str) -> jzero.Engine:
    """An engine on all devices of all processes."""
    config = {
        "train_batch_size": ROWS,
        "gradient_accumulation_steps": N_MICRO,
        "gradient_clipping": 1.0,
        # A large eps: Adam divides by the size of a gradient, and would blow up the rounding of tiny ones.
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "eps": 1e-3}},
    }
    return jzero.initialize(model=Net, loss_fn=loss_fn, config=config | CASES[case], sample_batch=batch(0))


def batch(index: int) -> dict[str, np.ndarray]:
    """This process's part of every micro-batch, so that each device gets the rows that one process would give it."""
    rng = np.random.default_rng(index)
    whole = {
        "tokens": rng.integers(0, VOCAB, ROWS, np.int32),
        "labels": rng.integers(0, VOCAB, ROWS, np.int32),
        "weights": rng.uniform(0, 2, ROWS).astype(np.float32),
    }
    shape = (N_MICRO, jax.process_count(), -1)
    return {name: x.reshape(shape)[:, jax.process_index()].ravel() for name, x in whole.items()}


def train(engine: jzero.Engine, checkpoint: Path | None = None) -> dict[str, np.ndarray]:
    """Trains for some steps, saves and loads if there is a `checkpoint`, trains on, and evaluates.

    Returns:
        The metrics by name, one value a step; the validation loss; the parameters under `params.NAME`.
    """
    metrics = [engine.train_batch(batch(i)) for i in range(STEPS)]
    if checkpoint is not None:
        engine.save_checkpoint(checkpoint, {"next_batch": STEPS})
        other_state = engine.functional.init(np.uint32(1))
        engine = jzero.Engine(engine.functional, other_state)  # without compiling once more
        assert engine.load_checkpoint(checkpoint) == {"next_batch": STEPS}
    metrics += [engine.train_batch(batch(STEPS + i)) for i in range(STEPS_AFTER_LOAD)]
    return {
        **{name: np.array([float(m[name]) for m in metrics]) for name in metrics[0]},
        "validation_loss": np.asarray(engine.eval_batch(batch(100))["loss"]),
        **whole_params(engine),
    }


def whole_params(engine: jzero.Engine) -> dict[str, np.ndarray]:
    """All parameters as numpy arrays, on every process."""
    params = multihost_utils.process_allgather(engine.params, tiled=True)
    return {
        "params." + jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def main(folder: Path) -> None:
    """All cases, on this process's devices and those of the others."""
    jzero.simulate_devices(N_DEVICES_EACH)
    assert initialize_from_environment()
    rank = jax.process_index()
    for case in CASES:
        engine = make_engine(case)
        if rank == 1:  # A batch is refused before anything has started, so the process can come back with a better one.
            try:
                engine.train_batch(batch(0) | {"tokens": np.zeros(3, np.int32)})
            except jzero.BatchError as error:
                print(error)
        np.savez(folder / f"{case}-{rank}.npz", **train(engine, folder / case))  # pyright: ignore[reportArgumentType]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
