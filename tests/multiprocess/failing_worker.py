"""A process of two: the second one fails, the first one waits for it in a collective."""

import jax
from jax.experimental import multihost_utils

import jzero
from jzero.launch import initialize_from_environment

if __name__ == "__main__":
    jzero.simulate_devices(1)
    initialize_from_environment()
    multihost_utils.sync_global_devices("both are here")
    if jax.process_index() == 1:
        raise jzero.BatchError("this batch does not fit")
    multihost_utils.sync_global_devices("waiting")
