"""A process of two that are given another thing in each call of `initialize`; prints what each of them refuses."""

from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import jzero
from jzero.launch import initialize_from_environment

SGD = {"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}


def initialize(**options: Any) -> None:
    """Prints the refusal of a run that differs from a plain one in these options."""
    plain = {
        "model": lambda rngs: nnx.Linear(4, 1, rngs=rngs),
        "loss_fn": lambda model, x: model(x).mean(),
        "config": SGD,
        "sample_batch": np.ones((4, 4), np.float32),
    }
    try:
        jzero.initialize(**plain | options)
        print("started")
    except jzero.ConfigError as error:
        print(error)


if __name__ == "__main__":
    jzero.simulate_devices(1)
    initialize_from_environment()
    rank = jax.process_index()
    initialize(seed=rank, sample_batch=np.ones((4 + 4 * rank, 4), np.float32))
    initialize(config={**SGD, "zero_optimization": {"stage": "auto" if rank else 1}})
    initialize(model=lambda rngs: nnx.Linear(4, 1 + rank, rngs=rngs))
    initialize(optimizer=optax.adam(0.1) if rank else optax.sgd(0.1))
    initialize(trainable=lambda name: name == "kernel" or rank == 0)
    initialize(params={"kernel": np.full((4, 1), rank, np.float32), "bias": np.zeros(1, np.float32)})
