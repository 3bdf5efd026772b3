"""Compiles training steps for 64 GPUs that are not there and prints what each holds, sends and costs to compile.

Beside jzero's stages stand hand-written steps whose sharding is left to the compiler: with annotations alone, and with
every weight constrained to be whole at its use. Most gradients travel in bf16 there, so stage 3 is shown that way too.
The GPT has all four stages and the ZeRO paper's formulas (Rajbhandari et al. 2020, sections 5 and 7), the other models
stage 3. Everything is read from the compiled programs; nothing runs.

    python benchmarks/gpu_program.py --models gpt
    python benchmarks/gpu_program.py --models llama,resnet,lstm --small --gpus 8
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import programs  # before jax, so that the compiler stays quiet

# isort: split
from expected import unexpected
from models import SMALL_SUBJECTS, SUBJECTS, Subject, gpt
from peers import Peer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jzero.plan import GPUS, Program, gpu_mesh, read_program

# Bytes of model state per parameter on one of N devices: mixed precision, Adam, gradients in 16 bits.
PAPER_STATE = {0: lambda n: 16, 1: lambda n: 4 + 12 / n, 2: lambda n: 2 + 14 / n, 3: lambda n: 16 / n}
PAPER_WIRE = {0: 2, 1: 2, 2: 2, 3: 3}  # elements sent per parameter and step
KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")


def builders(subject: Subject, mesh: Any) -> dict[str, Callable[[], Peer]]:
    """Name of a program -> what builds its step."""
    stages = range(4) if subject.name == "gpt" else [3]
    return {
        **{f"stage {stage}": lambda stage=stage: programs.jzero_step(subject, mesh, stage=stage) for stage in stages},
        "stage 3 bf16": lambda: programs.jzero_step(subject, mesh, stage=3, gradients_in="bf16"),
        "annotated": lambda: programs.hand_written_step(subject, mesh),
        "constrained": lambda: programs.hand_written_step(subject, mesh, constrained_at_use=True),
    }


def row(name: str, program: Program, seconds: dict[str, float], subject: Subject, n_gpus: int) -> dict[str, Any]:
    """What the table shows of one program: bytes and seconds per GPU and step, and seconds to compile it."""
    stage = int(name.split()[1]) if name.startswith("stage ") else None
    strangers = unexpected(program.collectives, subject.params, n_gpus, stacked=subject.stacked is not None)
    loops = program.loops()
    sums = {
        part: sum(getattr(loop, f"{part}_seconds") for loop in loops)
        for part in ("communication", "exposed", "product")
    }
    return {
        "lasting": program.memory.argument,
        "peak": program.memory.peak,
        "temporary": program.memory.temp,
        "paper_state": None if stage is None else PAPER_STATE[stage](n_gpus) * subject.n_params,
        **{f"sent_by_{kind}": program.wire_bytes(kind) for kind in KINDS},
        "sent": program.wire_bytes(),
        "paper_sent_16_bit": None if stage is None else PAPER_WIRE[stage] * 2 * subject.n_params,
        "sent_unexpectedly": sum(c.wire_bytes * c.executions for c in strangers),
        "unexpected_collectives": sum(c.executions for c in strangers),
        "overlapped_share": program.overlapped_share(min_bytes=2**20),
        "overlapped_share_in_loops": program.overlapped_share(min_bytes=2**20, in_loops=True),
        **{f"{part}_seconds": value for part, value in sums.items()},
        "trace_seconds": seconds["trace"],
        "compile_seconds": seconds["compile"],
    }


def main() -> None:
    """Runs the benchmark and prints tables, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--gpu", default="h100-80g", choices=GPUS)
    parser.add_argument("--models", default=",".join(SUBJECTS), help="with commas (default: %(default)s)")
    parser.add_argument("--programs", help="which columns, with commas, such as stage 3,annotated (default: all)")
    parser.add_argument("--small", action="store_true", help="small models, which compile in seconds")
    parser.add_argument("--layers", type=int, default=36, help="of the GPT (default: %(default)s)")
    parser.add_argument("--d-model", type=int, default=4096, help="of the GPT (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    known = (
        SMALL_SUBJECTS
        if args.small
        else SUBJECTS
        | {
            "gpt": lambda: gpt(layers=args.layers, d_model=args.d_model),
            "gpt-unrolled": lambda: gpt(layers=args.layers, d_model=args.d_model, scan_layers=False),
        }
    )
    if unknown := [name for name in args.models.split(",") if name not in known]:
        parser.error(f"no model is named {unknown[0]!r}; known are {', '.join(known)}")
    mesh, results = gpu_mesh(args.gpu, args.gpus), {}
    for model in args.models.split(","):
        subject = known[model]()
        steps = builders(subject, mesh)
        wanted = args.programs.split(",") if args.programs else list(steps)
        chosen = [name for name in steps if name in wanted]
        rows = {}
        for name in track(chosen, description=model, console=Console(stderr=True)):
            compiled, seconds, _ = programs.timed(steps[name])
            rows[name] = row(name, read_program(compiled, mesh), seconds, subject, args.gpus)
        results[model] = {"parameters": subject.n_params, "programs": rows}
        if not args.json:
            title = (
                f"{model}: {subject.n_params / 1e9:.3g}B parameters on {args.gpus} x {args.gpu}, "
                f"{subject.rows_per_gpu} x {subject.row} each; GB per GPU"
            )
            Console(width=max(120, Console().width)).print(table(title, rows))
    if args.json:
        print(json.dumps(results, indent=2))


def table(title: str, rows: dict[str, dict[str, Any]]) -> Table:
    """One column per program; a line that is nothing everywhere is left out."""
    out = Table(title=title)
    out.add_column("")
    for name in rows:
        out.add_column(name, justify="right")
    for key in next(iter(rows.values()), {}):
        values = [r[key] for r in rows.values()]
        if not any(values) and key.startswith(("sent_by", "paper")):
            continue
        label, scale, digits = key.replace("_", " "), 1e9, 3
        if key.endswith("_seconds") and not key.startswith(("trace", "compile")):
            label, scale, digits = key.replace("_seconds", " ms at peak speed"), 1e-3, 2
        elif "share" in key or key.endswith("_seconds"):
            scale, digits = 1, 2
        elif key == "unexpected_collectives":
            scale, digits = 1, 0
        out.add_row(label, *["" if v is None else f"{v / scale:.{digits}f}" for v in values])
    return out


if __name__ == "__main__":
    main()
