"""A process of two that were started with different seeds and batches."""

import jax
import numpy as np
from flax import nnx

import jzero
from jzero.launch import initialize_from_environment

if __name__ == "__main__":
    jzero.simulate_devices(1)
    initialize_from_environment()
    jzero.initialize(
        model=lambda rngs: nnx.Linear(4, 1, rngs=rngs),
        loss_fn=lambda model, x: model(x).mean(),
        config={"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}},
        sample_batch=np.ones((2 + 2 * jax.process_index(), 4), np.float32),
        seed=jax.process_index(),
    )
