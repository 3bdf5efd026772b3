"""Measures checkpoints on 8 simulated devices: how long training stalls, bandwidths, export's memory.

Every round does each thing once, one after the other, so that noise on the machine and its disk meets all alike;
medians are compared. Files are written through to the disk; what is read lies in the system's cache for all alike.

    python benchmarks/checkpoint.py --megabytes 500 --rounds 7
"""

import argparse
import json
import operator
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import jzero

jzero.simulate_devices(8)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from jzero.checkpoint import read_header  # noqa: E402
from jzero.checkpoint.convert.exporting import export  # noqa: E402
from jzero.checkpoint.format import arrays  # noqa: E402

SYNCHRONOUS, STALL = "synchronous save", "stall of an asynchronous save"
WIDTH, ROWS, BYTES_PER_PARAMETER = 2048, 8, 12  # fp32 master and two moments


class Stack:
    """As many square layers as fill the memory."""

    def __init__(self, megabytes: int):
        self.n_layers = max(1, round(megabytes * 1e6 / (BYTES_PER_PARAMETER * WIDTH**2)))

    def init(self, key, batch):
        keys = jax.random.split(key, self.n_layers)
        return {f"layer_{i:03}": jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH**0.5 for i, k in enumerate(keys)}


def loss_fn(params, x):
    for w in params.values():
        x = jnp.tanh(x @ w)
    return (x**2).mean()


def seconds(action: Callable[[], object]) -> float:
    """How long an action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def copy_through(source: Path, target: Path) -> None:
    """Copies a folder's files and waits until they are on the disk."""
    shutil.copytree(source, target)
    for path in target.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def read_all(folder: Path) -> None:
    """Reads every file into memory, one after the other."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.read_bytes()


def measure(megabytes: int, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each thing in each round."""
    batch = np.ones((ROWS, WIDTH), np.float32)
    config = {
        "train_batch_size": ROWS,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    }
    engine = jzero.initialize(model=Stack(megabytes), loss_fn=loss_fn, config=config, sample_batch=batch)
    step = lambda: jax.block_until_ready((engine.train_batch(batch), engine.state))
    taken: dict[str, list[float]] = {}

    def one_round(n: int) -> dict[str, float]:
        path, copy = folder / f"c-{n}", folder / "copy"
        step()
        row = {"step": statistics.median(seconds(step) for _ in range(3))}
        row[SYNCHRONOUS] = seconds(lambda: engine.save_checkpoint(path))
        shutil.rmtree(path)
        step()
        start, savings = time.perf_counter(), []
        row[STALL] = seconds(lambda: savings.append(engine.save_checkpoint(path, wait=False)))
        row["step beside the save"] = seconds(step)
        savings[0].wait()
        row["asynchronous save"] = time.perf_counter() - start
        row["load"] = seconds(lambda: engine.load_checkpoint(path))
        row["plain copy"] = seconds(lambda: copy_through(path, copy))
        row["plain read"] = seconds(lambda: read_all(path))
        shutil.rmtree(copy)
        if n != rounds:
            shutil.rmtree(path)
        return row

    for n in range(rounds + 1):  # the first compiles
        for name, value in one_round(n).items():
            taken.setdefault(name, []).append(value)
    return {name: values[1:] for name, values in taken.items()}


def exports_memory(path: Path) -> dict[str, int]:
    """How much memory an export takes beyond what the program has before it, in a process of its own."""
    command = [sys.executable, __file__, "--export-of", str(path)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def export_and_tell(path: Path) -> None:
    """What that process does; Linux says how much memory it has had at most since it was last asked to forget."""
    memory = lambda line: int(Path("/proc/self/status").read_text().partition(f"{line}:")[2].split()[0]) * 1024
    arrays.open_leaf(path, "step").read().result()  # whatever is loaded once is loaded
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    with tempfile.TemporaryDirectory(dir=path.parent) as out:
        n_bytes = sum(file.stat().st_size for file in export(path, out))
    leaf = max(leaf.nbytes for leaf in read_header(path)[1].leaves.values())
    print(json.dumps({"bytes": memory("VmHWM") - before, "largest_leaf": leaf, "written": n_bytes}))


def report(results: dict) -> Table:
    """The medians, and what they mean."""
    table = Table(title=f"{results['megabytes']:.0f} MB of state, {results['rounds']} rounds")
    for column, justify in (("", "left"), ("seconds", "right"), ("MB/s", "right")):
        table.add_column(column, justify=justify)
    for name, value in results["median_seconds"].items():
        moves = name in {SYNCHRONOUS, "asynchronous save", "load", "plain copy", "plain read"}
        table.add_row(name, f"{value:.3f}", f"{results['megabytes'] / value:.0f}" if moves else "")
    table.add_section()
    shares = sorted(map(operator.truediv, *(results["seconds"][name] for name in (STALL, SYNCHRONOUS))))
    table.add_row("stall / synchronous save", f"{results['stall_share']:.1%}", "")
    table.add_row("in single rounds", f"{shares[0]:.1%} to {shares[-1]:.1%}", "")
    memory = results["export"]
    table.add_row("export's memory / largest leaf", f"{memory['bytes'] / memory['largest_leaf']:.1f}", "")
    return table


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500, help="of state")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one by default")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--export-of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.export_of:
        export_and_tell(args.export_of)
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        taken = measure(args.megabytes, args.rounds, Path(folder))
        path = Path(folder, f"c-{args.rounds}")
        n_bytes = sum(leaf.nbytes for leaf in read_header(path)[1].leaves.values())
        medians = {name: statistics.median(values) for name, values in taken.items()}
        results = {
            "megabytes": n_bytes / 1e6,
            "rounds": args.rounds,
            "seconds": taken,
            "median_seconds": medians,
            "stall_share": medians[STALL] / medians[SYNCHRONOUS],
            "export": exports_memory(path),
        }
    if args.json:
        print(json.dumps(results))
    else:
        Console().print(report(results))


if __name__ == "__main__":
    main()
