"""Times jzero's stages on 8 simulated CPU devices against hand-written steps of the same model, and prints ratios.

All programs run in one process, a step of each in every round, in another random order each time, so that noise on the
machine and what ran just before meet all alike. Ratios are medians over the rounds; the last column is the same of
processor time, which other work on the machine disturbs less.

    python benchmarks/cpu_mesh.py --rounds 20
"""

import argparse
import json
import statistics
import time

import jzero

jzero.simulate_devices(8)

import jax  # noqa: E402
import numpy as np  # noqa: E402
from models import Subject, gpt  # noqa: E402
from peers import deepspeed_config, hand_written  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from rich.table import Table  # noqa: E402

ROWS, SEQ_LEN, VOCAB_SIZE = 16, 128, 512
PEER_OF = {
    "stage 0": "data parallel",
    "stage 1": "data parallel",
    "stage 2": "data parallel",
    "stage 3": "annotated",
    "two levels": "stage 3",
}
GROUP = 4
"""Devices of a group at two levels; all links are alike here, so that the row shows what the second hop costs."""


def programs(subject: Subject) -> dict:
    """Name -> function that takes one step with a batch and waits for it."""
    mesh = jzero.make_mesh()
    runs = {}
    for name, sharded in (("data parallel", False), ("annotated", True)):
        peer = hand_written(
            subject.model, subject.loss_fn, mesh, subject.batch(ROWS), sharded=sharded, stacked=subject.stacked
        )
        runs[name] = _peer(peer)
    configs = {f"stage {stage}": deepspeed_config(stage, ROWS, "fp32") for stage in range(4)}
    two_levels = deepspeed_config(3, ROWS, "fp32")
    two_levels["zero_optimization"] = {**two_levels["zero_optimization"], "zero_hpz_partition_size": GROUP}
    for name, config in (configs | {"two levels": two_levels}).items():
        engine = jzero.initialize(
            model=subject.model, loss_fn=subject.loss_fn, config=config, sample_batch=subject.batch(ROWS)
        )
        runs[name] = lambda tokens, engine=engine: jax.block_until_ready(engine.train_batch({"tokens": tokens})["loss"])
    return runs


def _peer(peer):
    state = peer.init()

    def run(tokens):
        nonlocal state
        state, loss = peer.step(state, {"tokens": jax.device_put(tokens, peer.batch["tokens"].sharding)})
        jax.block_until_ready((state, loss))

    return run


def main() -> None:
    """Runs the benchmark and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="timed steps of each program (default: 20)")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    console = Console(stderr=True)
    results = {}
    for form in ("unrolled", "scanned"):
        subject = gpt(
            layers=args.layers,
            d_model=args.d_model,
            scan_layers=form == "scanned",
            seq_len=SEQ_LEN,
            vocab_size=VOCAB_SIZE,
            heads=4,
            remat=False,
        )
        runs = programs(subject)
        tokens = np.random.default_rng(0).integers(0, VOCAB_SIZE, (ROWS, SEQ_LEN + 1), dtype=np.int32)
        order = np.random.default_rng(1)
        clocks = {"wall": time.perf_counter, "processor": time.process_time}
        times = {clock: {name: [] for name in runs} for clock in clocks}
        for round_ in track(range(-2, args.rounds), description=f"{form}", console=console):
            for name in order.permutation(list(runs)):
                run = runs[name]
                started = {clock: now() for clock, now in clocks.items()}
                run(tokens)
                for clock, now in clocks.items():
                    if round_ >= 0:  # the first two compile and warm up
                        times[clock][name].append(now() - started[clock])
        results[form] = {"seconds": {name: statistics.median(t) for name, t in times["wall"].items()}} | {
            f"{clock}_ratio_to_peer": {name: _ratio(taken[name], taken[peer]) for name, peer in PEER_OF.items()}
            for clock, taken in times.items()
        }
    print(json.dumps(results, indent=2)) if args.json else Console().print(table(results))


def _ratio(some: list[float], others: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(some, others, strict=True))


def table(results: dict) -> Table:
    """One row per program and form."""
    out = Table(title=f"Step time on 8 simulated devices, {jax.__version__=}, medians")
    numbers = ("milliseconds", "ratio", "processor time")
    for heading in ("layers", "program", "milliseconds", "against", "ratio", "processor time"):
        out.add_column(heading, justify="right" if heading in numbers else "left")
    for form, result in results.items():
        for name, seconds in result["seconds"].items():
            ratios = [result[f"{clock}_ratio_to_peer"].get(name) for clock in ("wall", "processor")]
            shown = [f"{ratio:.3f}" if ratio else "" for ratio in ratios]
            out.add_row(form, name, f"{1e3 * seconds:.1f}", PEER_OF.get(name, ""), *shown)
        out.add_section()
    return out


if __name__ == "__main__":
    main()
