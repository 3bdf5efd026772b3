"""Parts of `gpu_real.py`: steps of one GPT on one device, what they take, and what was predicted of them.

Each part is a function of the sizes that prints nothing and returns what goes into the JSON.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import programs  # before jax, so that the compiler stays quiet

# isort: split
import jax
import numpy as np
from models import Subject, gpt
from peers import Peer, deepspeed_config

import jzero
from jzero.plan import compile_only, gpu_figures, gpu_mesh, read_program
from jzero.plan.hardware.figures import is_known

PROGRAMS = ("plain", "stage 0", "stage 3")
Sizes = Mapping[str, int]


def subject(sizes: Sizes, form: str) -> Subject:
    """The GPT; on GPUs its attention is cuDNN's."""
    made = gpt(
        layers=sizes["layers"],
        d_model=sizes["d_model"],
        seq_len=sizes["seq_len"],
        vocab_size=sizes["vocab_size"],
        scan_layers=form == "scanned",
    )
    return dataclasses.replace(made, rows_per_gpu=sizes["rows"])


def make(name: str, sizes: Sizes, form: str, mesh: Any) -> Peer:
    """One of `PROGRAMS` for a mesh of one device."""
    if name == "plain":
        return programs.hand_written_step(subject(sizes, form), mesh, sharded=False)
    return programs.jzero_step(subject(sizes, form), mesh, stage=int(name.removeprefix("stage ")))


def tokens_like(batch: Any, vocab_size: int) -> Any:
    """Random tokens in the shapes and places of an abstract batch."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: jax.device_put(random.integers(0, vocab_size, x.shape, dtype=np.int32), x.sharding), batch
    )


def runner(peer: Peer, vocab_size: int) -> Callable[[int], float]:
    """Returns `run(n)`, which takes n steps, waits for the last and returns the seconds."""
    state, batch = peer.init(), tokens_like(peer.batch, vocab_size)

    def run(n: int) -> float:
        nonlocal state
        start = time.perf_counter()
        for _ in range(n):
            state, metrics = peer.step(state, batch)
        jax.block_until_ready((state, metrics))
        return time.perf_counter() - start

    return run


def in_turns(runs: Mapping[str, Callable[[int], float]], rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds per step of each, in turns, so that the GPU's clocks and temperature meet all alike."""
    names = list(runs)
    for run in runs.values():
        run(2)  # compiles and warms up
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(rounds):
        for i in range(len(names)):
            name = names[(i + round_) % len(names)]
            seconds[name].append(runs[name](steps) / steps)
    return seconds


def timings(sizes: Sizes, form: str, names: list[str]) -> dict[str, Any]:
    """Seconds per step of every program, and the share of the GPU's peak that its products use (MFU).

    Flops are those of the model: 6 a parameter and token, with those of causal attention and without those of
    rematerialisation, as PaLM's appendix B counts them; the peak is the bf16 one of the GPU's file.
    """
    device = jax.devices()[0]
    mesh = jzero.make_mesh([device])
    runs = {name: runner(make(name, sizes, form, mesh), sizes["vocab_size"]) for name in names}
    seconds = in_turns(runs, sizes["rounds"], sizes["steps"])
    tokens = sizes["rows"] * sizes["seq_len"]
    flops = tokens * (6 * subject(sizes, form).n_params + 6 * sizes["layers"] * sizes["seq_len"] * sizes["d_model"])
    peak = gpu_figures(device.device_kind).flops["bf16"] if is_known(device.device_kind) else None
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "seconds": seconds,
        "programs": {
            name: {
                "milliseconds": 1e3 * median,
                "tokens_per_second": tokens / median,
                "model_tflops_per_second": flops / median / 1e12,
                "mfu": flops / median / peak if peak else None,
                "ratio_to_plain": medians["plain"] / median if "plain" in medians else None,
            }
            for name, median in medians.items()
        },
    }


def peak(sizes: Sizes, form: str, name: str) -> dict[str, Any]:
    """Bytes that one program takes on this process's device, and those that its compiler planned for it.

    Measured ones are null where the device does not tell.
    """
    device = jax.devices()[0]
    peer = make(name, sizes, form, jzero.make_mesh([device]))
    planned = read_program(peer.step.lower(peer.state, peer.batch).compile()).memory
    run = runner(peer, sizes["vocab_size"])
    in_use = lambda: (device.memory_stats() or {}).get("peak_bytes_in_use")
    after_init = in_use()
    run(3)
    return {"measured_peak": in_use(), "measured_peak_of_init": after_init, "planned_peak": planned.peak}


def predictions(sizes: Sizes, form: str, names: list[str], gpu: str) -> dict[str, Any]:
    """Bytes that the compiler plans for every program on a GPU that is not there."""
    mesh, found = gpu_mesh(gpu, n_gpus=1), {}
    for name in names:
        peer = make(name, sizes, form, mesh)
        compiled = compile_only(peer.step.lower(peer.state, peer.batch))
        memory = read_program(compiled, mesh).memory
        found[name] = {"predicted_peak": memory.peak, "predicted_lasting": memory.argument}
    return found


def engine(sizes: Sizes, form: str, **zero: Any) -> tuple[jzero.Engine, Any]:
    """An engine at stage 3 in bf16, and a batch for it."""
    model = subject(sizes, form)
    config = deepspeed_config(3, sizes["rows"], "bf16")
    config["zero_optimization"] |= zero
    mesh = jzero.make_mesh(jax.devices()[:1])
    batch = model.batch(sizes["rows"])
    made = jzero.initialize(
        model=model.model, loss_fn=model.loss_fn, config=config, sample_batch=batch, mesh=mesh, seed=0
    )
    random = np.random.default_rng(0)
    return made, jax.tree.map(lambda x: random.integers(0, sizes["vocab_size"], x.shape, dtype=np.int32), batch)
