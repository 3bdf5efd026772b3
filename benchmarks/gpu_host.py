"""Parts of `gpu_real.py`: what passes between one device and its host, and what it costs a step."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu_steps
import jax
import jax.numpy as jnp
from gpu_steps import Sizes


def seconds_of(action: Callable[[], Any]) -> float:
    """How long an action takes, its arrays included."""
    start = time.perf_counter()
    jax.block_until_ready(action())
    return time.perf_counter() - start


def transfers(megabytes: int, rounds: int) -> dict[str, Any]:
    """GB/s from pinned host memory to the device, and back."""
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="device")
    host = device.with_memory_kind("pinned_host")
    there = jax.device_put(jnp.ones((megabytes, 250_000), jnp.float32), device)
    here = jax.device_put(there, host)
    moves = {"to_device": lambda: jax.device_put(here, device), "to_host": lambda: jax.device_put(there, host)}
    rates = {name: [] for name in moves}
    for round_ in range(rounds + 1):
        for name, move in moves.items():
            took = seconds_of(move)
            if round_:  # the first one pins memory
                rates[name].append(megabytes / 1e3 / took)
    return {name: statistics.median(values) for name, values in rates.items()} | {"megabytes": megabytes}


def offload(sizes: Sizes, form: str, rates: dict[str, float]) -> dict[str, Any]:
    """The step with the optimizer in host memory against the step without, and how much of its transfers is hidden.

    Args:
        sizes: of the model.
        form: of its layers.
        rates: what `transfers` returned.
    """
    runs, n_bytes = {}, 0.0
    for name, zero in {"devices": {}, "host": {"offload_optimizer": {"device": "cpu"}}}.items():
        engine, batch = gpu_steps.engine(sizes, form, **zero)
        budget = engine.functional.host_budget
        n_bytes = max(n_bytes, budget.to_device + budget.to_host)
        alone = budget.to_device / rates["to_device"] / 1e9 + budget.to_host / rates["to_host"] / 1e9

        def run(n: int, engine: Any = engine, batch: Any = batch) -> float:
            return seconds_of(lambda: [engine.train_batch(batch) for _ in range(n)] and engine.state)

        runs[name] = run
    seconds = gpu_steps.in_turns(runs, sizes["rounds"], sizes["steps"])
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    added = medians["host"] - medians["devices"]
    return {
        "milliseconds": {name: 1e3 * value for name, value in medians.items()},
        "bytes_over_pcie": n_bytes,
        "milliseconds_of_transfers_alone": 1e3 * alone,
        "share_hidden": 1 - added / alone if alone else None,
    }


def checkpoint(sizes: Sizes, form: str) -> dict[str, Any]:
    """How long training stands still for a save in the background, against one that it waits for."""
    engine, batch = gpu_steps.engine(sizes, form)
    step = lambda: (engine.train_batch(batch), engine.state)
    step()
    taken: dict[str, list[float]] = {"step": [], "stall": [], "step_beside_the_save": [], "synchronous": []}
    with tempfile.TemporaryDirectory() as folder:
        for i in range(3):
            taken["step"].append(seconds_of(step))
            start = time.perf_counter()
            saving = engine.save_checkpoint(Path(folder, "a"), wait=False)
            taken["stall"].append(time.perf_counter() - start)
            taken["step_beside_the_save"].append(seconds_of(step))
            saving.wait()
            taken["synchronous"].append(seconds_of(lambda i=i: engine.save_checkpoint(Path(folder, "a")) and None))
    medians = {name: statistics.median(values) for name, values in taken.items()}
    return {"seconds": medians, "stall_share": medians["stall"] / medians["synchronous"]}
