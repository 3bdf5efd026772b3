"""Times how long jzero's stage-3 step takes to trace and to compile, against the hand-written step with annotations.

Both are compiled for GPUs that are not there, in turns and in changing order, each from nothing: caches are cleared, so
that every round builds, traces and compiles again. Medians are compared. On a machine with other work, processor
seconds are steadier than those of the clock.

    python benchmarks/compile_time.py --rounds 3
    python benchmarks/compile_time.py --layers 4 --d-model 512 --gpus 8 --forms scanned
"""

import argparse
import json
import statistics
from typing import Any

import programs  # before jax, so that the compiler stays quiet

# isort: split
import jax
from models import Subject, gpt
from programs import PHASES
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jzero.plan import GPUS, gpu_mesh


def compare(subject: Subject, mesh: Any, rounds: int, console: Console) -> dict[str, Any]:
    """Medians of all rounds, and the ratios of tracing and compiling together."""
    builds = {
        "stage 3": lambda: programs.jzero_step(subject, mesh, stage=3),
        "annotated": lambda: programs.hand_written_step(subject, mesh),
    }
    times: dict[str, list[tuple[dict, dict]]] = {name: [] for name in builds}
    for round_ in track(range(rounds), description=subject.name, console=console):
        for name in sorted(builds, reverse=round_ % 2 == 0):
            times[name].append(programs.timed(builds[name])[1:])
    result: dict[str, Any] = {}
    for i, clock in enumerate(("seconds", "processor_seconds")):
        medians = {
            name: {phase: statistics.median(t[i][phase] for t in runs) for phase in PHASES}
            | {"trace_and_compile": statistics.median(t[i]["trace"] + t[i]["compile"] for t in runs)}
            for name, runs in times.items()
        }
        ratio = medians["stage 3"]["trace_and_compile"] / medians["annotated"]["trace_and_compile"]
        result[clock] = {**medians, "ratio": ratio}
    return result


def main() -> None:
    """Runs the benchmark and prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--gpu", default="h100-80g", choices=GPUS)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--d-model", type=int, default=4096)
    parser.add_argument("--forms", default="scanned,unrolled", help="which of scanned and unrolled, with a comma")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    mesh, console = gpu_mesh(args.gpu, args.gpus), Console(stderr=True)
    results = {}
    for form in args.forms.split(","):
        subject = gpt(layers=args.layers, d_model=args.d_model, scan_layers=form == "scanned")
        results[form] = compare(subject, mesh, args.rounds, console)
    title = f"Seconds for {args.layers} layers of width {args.d_model} on {args.gpus} x {args.gpu}, {jax.__version__=}"
    print(json.dumps(results, indent=2)) if args.json else Console().print(table(title, results))


def table(title: str, results: dict) -> Table:
    """One row per form, program and clock."""
    out = Table(title=title)
    for heading in ("layers", "clock", "program"):
        out.add_column(heading)
    for heading in (*PHASES, "trace and compile", "ratio"):
        out.add_column(heading, justify="right")
    for form, result in results.items():
        for clock, label in (("seconds", "wall"), ("processor_seconds", "processor")):
            for name in ("stage 3", "annotated"):
                seconds = [f"{value:.2f}" for value in result[clock][name].values()]
                ratio = f"{result[clock]['ratio']:.2f}" if name == "stage 3" else ""
                out.add_row(form, label, name, *seconds, ratio)
        out.add_section()
    return out


if __name__ == "__main__":
    main()
