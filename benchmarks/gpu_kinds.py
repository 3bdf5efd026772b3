"""Compiles models of the kinds that a GPU treats in ways of its own, for GPUs that are not there, in many settings.

Says of each model and setting how much working memory the program takes, or what was refused.

    python benchmarks/gpu_kinds.py
    python benchmarks/gpu_kinds.py --kinds "cuDNN, bias;LSTM" --settings "3"
"""

import argparse
import json
from typing import Any

import jzero  # noqa: F401  # before jax, so that the CUDA plugin stays quiet

# isort: split
from kinds import KINDS, Kind
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jzero.plan import GPUS, compile_step

HOST = {"offload_optimizer": {"device": "cpu"}}
SETTINGS: dict[str, tuple[int, dict[str, Any]]] = {
    "0": (1, {"stage": 0}),
    "1, two micro-batches, offloaded": (2, {"stage": 1, **HOST}),
    "2, two micro-batches": (2, {"stage": 2}),
    "3": (1, {"stage": 3}),
    "3, two micro-batches, no overlap": (2, {"stage": 3, "overlap_comm": False}),
    "3, offloaded": (1, {"stage": 3, **HOST, "offload_param": {"device": "cpu"}}),
}
"""Name -> micro-batches and `zero_optimization`: each pair of two things is there once."""


def outcome(kind: Kind, n_micro: int, zero: dict[str, Any], gpu: str, n_gpus: int) -> dict[str, Any]:
    """Bytes of working memory of the compiled step, or the first line of what was raised."""
    rows = 2 * n_micro * n_gpus
    config = {
        "train_batch_size": rows,
        "gradient_accumulation_steps": n_micro,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage3_param_persistence_threshold": 0, **zero},
    }
    try:
        program = compile_step(
            model=kind.model, loss_fn=kind.loss_fn, config=config, sample_batch=kind.batch(rows), gpu=gpu, n_gpus=n_gpus
        )
    except Exception as error:  # whatever a model of a user would meet
        return {"refused": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    return {"temporary": program.memory.temp}


def main() -> None:
    """Runs the benchmark and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="h100-80g", choices=GPUS)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--kinds", default=";".join(KINDS), help="with semicolons")
    parser.add_argument("--settings", default=";".join(SETTINGS), help="with semicolons")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    console, settings = Console(stderr=True), args.settings.split(";")
    results = {
        kind: {name: outcome(KINDS[kind], *SETTINGS[name], args.gpu, args.gpus) for name in settings}
        for kind in track(args.kinds.split(";"), console=console)
    }
    if args.json:
        print(json.dumps(results))
        return
    table = Table("stage, MB", *settings)
    refused: dict[str, None] = {}
    for kind, row in results.items():
        cells = [f"{found['temporary'] / 1e6:.1f}" if "temporary" in found else "refused" for found in row.values()]
        table.add_row(kind, *cells)
        refused |= {f"{kind}: {found['refused']}": None for found in row.values() if "refused" in found}
    Console().print(table)
    for line in refused:
        Console().print(line)


if __name__ == "__main__":
    main()
