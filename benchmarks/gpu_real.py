"""Times training steps on one real GPU: jzero at stages 0 and 3 against plain `jit` of the same GPT, all in bf16.

One process takes turns between the programs, so that the GPU's clocks and temperature meet all alike; medians are
compared. Peak memory is measured in a fresh process per program, and stands beside what the same program compiled for
a GPU that is not there predicts. Without a GPU a small form runs on the CPU, as a test of this script.

    python benchmarks/gpu_real.py --json
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import programs  # before jax, so that the compiler stays quiet

# isort: split
import jax
import numpy as np
from models import Subject, gpt
from peers import Peer
from rich.console import Console
from rich.table import Table

import jzero
from jzero.plan import GPUS, compile_only, gpu_figures, gpu_mesh, read_program
from jzero.plan.hardware.figures import is_known

PROGRAMS = ("plain", "stage 0", "stage 3")
NEAREST = "h100-80g"  # stands in for a GPU without a description
TARGET = 0.99  # of plain jit's tokens per second, at stage 0
SIZES = ("layers", "d_model", "seq_len", "vocab_size", "rows", "rounds", "steps")
FULL = {"layers": 24, "d_model": 1024, "seq_len": 1024, "vocab_size": 50304, "rows": 8, "rounds": 15, "steps": 5}
SMALL = {"layers": 2, "d_model": 128, "seq_len": 64, "vocab_size": 256, "rows": 4, "rounds": 3, "steps": 2}


def make(name: str, sizes: Mapping[str, int], form: str, mesh: Any) -> Peer:
    """One of `PROGRAMS` for a mesh of one device."""
    subject: Subject = dataclasses.replace(
        gpt(
            layers=sizes["layers"],
            d_model=sizes["d_model"],
            seq_len=sizes["seq_len"],
            vocab_size=sizes["vocab_size"],
            scan_layers=form == "scanned",
        ),
        rows_per_gpu=sizes["rows"],
    )
    if name == "plain":
        return programs.hand_written_step(subject, mesh, sharded=False)
    return programs.jzero_step(subject, mesh, stage=int(name.removeprefix("stage ")))


def runner(peer: Peer, vocab_size: int) -> Any:
    """Returns `run(n)`, which takes n steps, waits for the last and returns the seconds."""
    random, state = np.random.default_rng(0), peer.init()
    tokens = lambda x: jax.device_put(random.integers(0, vocab_size, x.shape, dtype=np.int32), x.sharding)
    batch = jax.tree.map(tokens, peer.batch)

    def run(n: int) -> float:
        nonlocal state
        start = time.perf_counter()
        for _ in range(n):
            state, metrics = peer.step(state, batch)
        jax.block_until_ready((state, metrics))
        return time.perf_counter() - start

    return run


def timings(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step of every program, in turns."""
    device = jax.devices()[0]
    defaults = SMALL if device.platform == "cpu" else FULL
    sizes = {name: getattr(args, name) or defaults[name] for name in SIZES}
    mesh = jzero.make_mesh([device])
    names = args.programs.split(",")
    runs = {name: runner(make(name, sizes, args.form, mesh), sizes["vocab_size"]) for name in names}
    for run in runs.values():
        run(2)  # compiles and warms up
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_ in range(sizes["rounds"]):
        for i in range(len(names)):
            name = names[(i + round_) % len(names)]
            seconds[name].append(runs[name](sizes["steps"]) / sizes["steps"])
    return {"platform": device.platform, "device_kind": device.device_kind, "sizes": sizes, "seconds": seconds}


def peak(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes that one program takes on this process's device, and those that its compiler planned for it.

    Measured ones are null where the device does not tell.
    """
    sizes = {name: getattr(args, name) for name in SIZES}
    device = jax.devices()[0]
    peer = make(args.programs, sizes, args.form, jzero.make_mesh([device]))
    planned = read_program(peer.step.lower(peer.state, peer.batch).compile()).memory
    run = runner(peer, sizes["vocab_size"])
    in_use = lambda: (device.memory_stats() or {}).get("peak_bytes_in_use")
    after_init = in_use()
    run(3)
    return {"measured_peak": in_use(), "measured_peak_of_init": after_init, "planned_peak": planned.peak}


def predictions(args: argparse.Namespace) -> dict[str, Any]:
    """Bytes that the compiler plans for every program on a GPU that is not there."""
    sizes = {name: getattr(args, name) for name in SIZES}
    mesh, found = gpu_mesh(args.gpu, n_gpus=1), {}
    for name in args.programs.split(","):
        peer = make(name, sizes, args.form, mesh)
        compiled = compile_only(peer.step.lower(peer.state, peer.batch))
        memory = read_program(compiled, mesh).memory
        found[name] = {"predicted_peak": memory.peak, "predicted_lasting": memory.argument}
    return found


CHILDREN = {"timings": timings, "peak": peak, "predictions": predictions}


def child(kind: str, args: argparse.Namespace, cache: str, **options: Any) -> Any:
    """Runs one of `CHILDREN` in a process of its own, because a process keeps what it once took of a GPU.

    What one process compiled the next one loads from `cache`: measured peaks are then those of running, not of the
    autotuner's trials.
    """
    given = {name: getattr(args, name) for name in (*SIZES, "programs", "form") if getattr(args, name)}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in {**given, **options}.items()]
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    if kind == "predictions":  # compiles for an absent GPU, which needs none of a present one's memory
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    done = subprocess.run(
        [sys.executable, __file__, f"--child={kind}", *flags], stdout=subprocess.PIPE, text=True, env=environment
    )
    if done.returncode:
        raise SystemExit(f"gpu_real.py: the process for {kind} {' '.join(flags)} failed.")
    return json.loads(done.stdout.splitlines()[-1])


def measure(args: argparse.Namespace, cache: str) -> dict[str, Any]:
    """Everything, as one JSON object; `cache` is an empty folder."""
    timed = child("timings", args, cache)
    sizes, kind = timed["sizes"], timed["device_kind"]
    # Without a GPU there is nothing to compare a prediction with, unless one is asked for.
    gpu = args.gpu or (None if timed["platform"] == "cpu" else gpu_figures(kind).name if is_known(kind) else NEAREST)
    predicted = child("predictions", args, cache, **sizes, gpu=gpu) if gpu else {}
    medians = {name: statistics.median(seconds) for name, seconds in timed["seconds"].items()}
    plain, tokens = medians.get("plain"), sizes["rows"] * sizes["seq_len"]
    results = {
        name: {
            "milliseconds": 1e3 * median,
            "tokens_per_second": tokens / median,
            "ratio_to_plain": plain / median if plain else None,
            **child("peak", args, cache, **sizes, programs=name),
            **predicted.get(name, {}),
        }
        for name, median in medians.items()
    }
    return {
        "device_kind": kind,
        "jax": jax.__version__,
        "form": args.form,
        "sizes": sizes,
        "predicted_for": gpu,
        "target_ratio_of_stage_0": TARGET,
        "programs": results,
        "seconds": timed["seconds"],
    }


def table(results: dict[str, Any]) -> Table:
    """One column per program."""
    sizes = results["sizes"]
    out = Table(
        title=f"One {results['device_kind']}, jax {results['jax']}: {sizes['layers']} {results['form']} layers of "
        f"width {sizes['d_model']}, {sizes['rows']} x {sizes['seq_len']} tokens, bf16",
        caption=f"target at stage 0: a ratio of at least {results['target_ratio_of_stage_0']}; memory in GB, "
        f"predicted for {results['predicted_for'] or 'no GPU'}",
    )
    out.add_column("")
    for name in results["programs"]:
        out.add_column(name, justify="right")
    for key in next(iter(results["programs"].values())):
        values = [program[key] for program in results["programs"].values()]
        if not any(values):
            continue
        scale, digits = (1e9, 3) if "peak" in key or "lasting" in key else (1, 3)
        out.add_row(key.replace("_", " "), *["" if v is None else f"{v / scale:,.{digits}f}" for v in values])
    return out


def main() -> None:
    """Measures and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in SIZES:
        help_ = f"{FULL[name]} on a GPU, {SMALL[name]} without one, unless given"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=help_)
    parser.add_argument("--form", default="scanned", choices=("scanned", "unrolled"), help="of the layers")
    parser.add_argument("--gpu", choices=GPUS, help="whose memory to predict (default: that of the device at hand)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="with commas (default: %(default)s)")
    args = parser.parse_args()
    if unknown := [name for name in args.programs.split(",") if name not in PROGRAMS]:
        parser.error(f"no program is named {unknown[0]!r}; known are {', '.join(PROGRAMS)}")
    if args.child:
        print(json.dumps(CHILDREN[args.child](args)))
        return
    with tempfile.TemporaryDirectory() as cache:
        results = measure(args, cache)
    print(json.dumps(results, indent=2)) if args.json else Console().print(table(results))


if __name__ == "__main__":
    main()
