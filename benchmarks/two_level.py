"""Compiles stage 3 flat, at two levels and with MiCS for nodes that are not there, and prints what crosses them.

Bytes are read from the compiled programs, whose own device groups say which collectives leave a node; step times are
the closed form's, for each network. Nothing runs.

    python benchmarks/two_level.py
    python benchmarks/two_level.py --layers 2 --d-model 512 --gpus 16 --accumulation 2
"""

import argparse
import json
from typing import Any

import programs  # noqa: F401  # before jax, so that the compiler stays quiet

# isort: split
from models import Subject, gpt
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jzero.plan import Program, compile_step, plan
from jzero.plan.compiled.collectives import link_traffic

NODE = 8
KINDS = {"flat": {}, "two levels": {"zero_hpz_partition_size": NODE}, "MiCS": {"mics_shard_size": NODE}}
PLANNED = {"flat": "none", "two levels": "two levels", "MiCS": "MiCS"}


def config(kind: str, rows: int, accumulation: int) -> dict[str, Any]:
    """Mixed precision, AdamW, gradients in fp32."""
    return {
        "train_batch_size": rows,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": {"stage": 3, **KINDS[kind]},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    }


def formula(kind: str, n_params: int, n_gpus: int) -> float | None:
    """Bytes that a GPU sends to other nodes, on paper; flat stage 3 depends on what it keeps gathered."""
    nodes = n_gpus // NODE
    each = {"two levels": 2 + 4, "MiCS": 2 * 4}.get(kind)
    return None if each is None else each * n_params / NODE * (nodes - 1) / nodes


def row(kind: str, program: Program, subject: Subject, n_gpus: int) -> dict[str, Any]:
    """What the table shows of one program, bytes of one GPU and step."""
    links = link_traffic(program.collectives)
    crossing = [c for c in program.collectives if c.per_node < c.group_size]
    return {
        "to other nodes": sum(links.across.values()),
        "to other nodes, formula": formula(kind, subject.n_params, n_gpus),
        "inside the node": sum(links.inside.values()),
        "collectives that cross nodes": sum(c.executions for c in crossing),
        "of these asynchronous": sum(c.executions for c in crossing if c.asynchronous),
        "lasting": program.memory.argument,
        "working": program.memory.temp,
        "peak": program.memory.peak,
    }


def times(subject: Subject, n_gpus: int, accumulation: int, network: str) -> dict[str, float]:
    """Seconds of a step by the closed form, at the middle of what programs get."""
    rows = n_gpus * accumulation * subject.rows_per_gpu
    found = plan(
        model=subject.model,
        loss_fn=subject.loss_fn,
        config=config("flat", rows, accumulation),
        sample_batch=subject.batch(rows),
        n_gpus=n_gpus,
        gpus_per_node=NODE,
        network=network,
        stages=(3,),
        compiled="nothing",
    )
    plain = {r.setting.groups: r.time.middle for r in found.rows if r.setting.offload == "nothing"}
    return {kind: plain[groups] for kind, groups in PLANNED.items()}


def main() -> None:
    """Runs the benchmark and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--accumulation", type=int, default=8, help="micro-batches (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=36, help="of the GPT (default: %(default)s)")
    parser.add_argument("--d-model", type=int, default=4096, help="of the GPT (default: %(default)s)")
    parser.add_argument("--unrolled", action="store_true", help="layers one by one instead of in a loop")
    parser.add_argument("--networks", default="100gb-roce,400gb-ib", help="with commas (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    subject = gpt(layers=args.layers, d_model=args.d_model, scan_layers=not args.unrolled)
    rows = args.gpus * args.accumulation * subject.rows_per_gpu
    results: dict[str, dict[str, Any]] = {}
    for kind in track(KINDS, description="compiling", console=Console(stderr=True)):
        program = compile_step(
            model=subject.model,
            loss_fn=subject.loss_fn,
            config=config(kind, rows, args.accumulation),
            sample_batch=subject.batch(rows),
            n_gpus=args.gpus,
            gpus_per_node=NODE,
        )
        results[kind] = row(kind, program, subject, args.gpus)
    for network in args.networks.split(","):
        for kind, seconds in times(subject, args.gpus, args.accumulation, network).items():
            results[kind][f"seconds, {network}"] = seconds
    title = (
        f"{subject.n_params / 1e9:.3g}B parameters, {args.gpus} H100s, {args.accumulation} micro-batches; GB per GPU"
    )
    print(json.dumps(results, indent=2)) if args.json else Console().print(table(title, results))


def table(title: str, results: dict[str, dict[str, Any]]) -> Table:
    """One column per program."""
    out = Table(title=title)
    out.add_column("")
    for kind in results:
        out.add_column(kind, justify="right")
    for key in next(iter(results.values())):
        values = [result[key] for result in results.values()]
        counts, seconds = "cross" in key or "asynchronous" in key, "seconds" in key
        show = (lambda n: f"{n:,}") if counts else (lambda n: f"{n:.2f}") if seconds else (lambda n: f"{n / 1e9:.2f}")
        out.add_row(key, *["" if value is None else show(value) for value in values])
    return out


if __name__ == "__main__":
    main()
