"""Everything that only a real GPU can say of jzero, in at most six minutes on one of them.

Steps of a 1.3B GPT at stages 0 and 3 against plain `jit`, with MFU, and peak memory beside what was predicted; rates
between host and device, and how much of them a step hides with the optimizer in host memory; what a save in the
background costs; every path of attention against plain fp32. Each part is a process of its own, since a process keeps
what it once took of a GPU. Without a GPU small sizes run on the CPU, as a test of this script.

    python benchmarks/gpu_real.py --json
    python benchmarks/gpu_real.py --parts steps,attention
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import gpu_steps  # before jax, so that the compiler stays quiet

# isort: split
import gpu_attention
import gpu_host
import jax
from gpu_steps import PROGRAMS
from gpu_tables import tables
from rich.console import Console

from jzero.plan import GPUS, gpu_figures
from jzero.plan.hardware.figures import is_known

PARTS = ("steps", "memory", "host", "checkpoint", "attention")
NEAREST = "h100-80g"  # stands in for a GPU without a description
TARGET = 0.99  # of plain jit's tokens per second, at stage 0
FULL = {"layers": 24, "d_model": 2048, "seq_len": 1024, "vocab_size": 50304, "rows": 8, "rounds": 10, "steps": 3}
QUICK = {"layers": 2, "d_model": 128, "seq_len": 64, "vocab_size": 256, "rows": 4, "rounds": 3, "steps": 2}


def device(args: argparse.Namespace) -> dict[str, Any]:
    """What the other parts run on; asked in a process that then lets go of it."""
    found = jax.devices()[0]
    return {"platform": found.platform, "device_kind": found.device_kind}


def steps(args: argparse.Namespace) -> dict[str, Any]:
    """Part `steps`."""
    return gpu_steps.timings(args.sizes, args.form, args.programs.split(","))


def peak(args: argparse.Namespace) -> dict[str, Any]:
    """Part `memory`, of each program; a GPU's peak is that of one program only where it is the first."""
    return {name: gpu_steps.peak(args.sizes, args.form, name) for name in args.programs.split(",")}


def predictions(args: argparse.Namespace) -> dict[str, Any]:
    """Part `memory`, what was predicted."""
    return gpu_steps.predictions(args.sizes, args.form, args.programs.split(","), args.gpu)


def host(args: argparse.Namespace) -> dict[str, Any]:
    """Part `host`."""
    rates = gpu_host.transfers(8 if args.quick else 2000, args.sizes["rounds"])
    return {"gigabytes_per_second": rates, "offload": gpu_host.offload(args.sizes, args.form, rates)}


def checkpoint(args: argparse.Namespace) -> dict[str, Any]:
    """Part `checkpoint`, of a quarter of the layers: what it takes is the disk's."""
    fewer = {**args.sizes, "layers": max(1, args.sizes["layers"] // 4)}
    return gpu_host.checkpoint(fewer, args.form)


def attention(args: argparse.Namespace) -> dict[str, Any]:
    """Part `attention`."""
    if args.quick:
        sizes, cases = {"rows": 1, "seq_len": 64, "heads": 4}, ("causal, grouped queries", "bias")
        return gpu_attention.compare(sizes, args.sizes["rounds"], cases)
    return gpu_attention.compare({"rows": 2, "seq_len": 2048, "heads": 16}, args.sizes["rounds"])


def together(args: argparse.Namespace) -> dict[str, Any]:
    """All parts in one process, for `--quick`: where nothing is measured, most of the time would be starting."""
    return {part: (peak if part == "memory" else CHILDREN[part])(args) for part in args.parts.split(",")}


CHILDREN = {f.__name__: f for f in (device, steps, peak, predictions, host, checkpoint, attention, together)}


class Children:
    """Runs parts in processes of their own, until the time is up.

    What one process compiled the next one loads from `cache`: measured peaks are then those of running, not of the
    autotuner's trials.
    """

    def __init__(self, args: argparse.Namespace, cache: str):
        self._args, self._cache, self._until = args, cache, time.monotonic() + args.limit

    def run(self, kind: str, **options: Any) -> Any:
        """What one of `CHILDREN` found, or why it found nothing."""
        left = self._until - time.monotonic()
        if left <= 0:
            return {"left_out": f"the {self._args.limit:g} s of --limit were over"}
        given = {name: getattr(self._args, name) for name in ("programs", "parts", "form", "gpu")} | options
        flags = [f"--{name}={value}" for name, value in given.items() if value]
        flags += ["--sizes", json.dumps(self._args.sizes), *["--quick"] * self._args.quick]
        command = [sys.executable, __file__, f"--child={kind}", *flags]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=self._environment(kind), timeout=left)
        except subprocess.TimeoutExpired:
            return {"left_out": f"it was not done when the {self._args.limit:g} s of --limit were over"}
        if done.returncode:
            return {"left_out": f"its process failed with status {done.returncode}; its error is above"}
        return json.loads(done.stdout.splitlines()[-1])

    def _environment(self, kind: str) -> dict[str, str]:
        environment = dict(os.environ)
        if not self._args.quick:  # programs for CPUs do not survive the cache where they offload
            environment |= {
                "JAX_COMPILATION_CACHE_DIR": self._cache,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
        if kind in ("predictions", "device"):  # these need none of the GPU's memory
            environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        return environment


def _of(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """What was found of one program, or why nothing was."""
    return found if "left_out" in found else found.get(name, {})


def measure(args: argparse.Namespace, children: Children, device: dict[str, Any]) -> dict[str, Any]:
    """Everything that was asked for, as one JSON object."""
    kind, began = device["device_kind"], time.monotonic()
    # Without a GPU there is nothing to compare a prediction with, unless one is asked for.
    gpu = args.gpu or (None if device["platform"] == "cpu" else gpu_figures(kind).name if is_known(kind) else NEAREST)
    results: dict[str, Any] = {
        "device_kind": kind,
        "jax": jax.__version__,
        "form": args.form,
        "sizes": args.sizes,
        "predicted_for": gpu,
        "target_ratio_of_stage_0": TARGET,
    }
    names, parts = args.programs.split(","), args.parts.split(",")
    found = children.run("together") if args.quick else {p: children.run(p) for p in parts if p != "memory"}
    if "left_out" in found:
        found = dict.fromkeys(parts, found)
    if "memory" in parts:
        rows = found["memory"] if args.quick else {n: _of(n, children.run("peak", programs=n)) for n in names}
        predicted = children.run("predictions", gpu=gpu) if gpu else {}
        found["memory"] = {name: row | _of(name, predicted) for name, row in rows.items()}
    results |= {part: found[part] for part in parts}
    return results | {"wall_seconds": time.monotonic() - began}


def read_arguments() -> argparse.Namespace:
    """The command line, `sizes` among it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, as without a GPU")
    parser.add_argument("--parts", default=",".join(PARTS), help="with commas (default: %(default)s)")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="with commas (default: %(default)s)")
    for name in FULL:
        help_ = f"{FULL[name]} on a GPU, {QUICK[name]} with --quick, unless given"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=help_)
    parser.add_argument("--form", default="scanned", choices=("scanned", "unrolled"), help="of the layers")
    parser.add_argument("--gpu", choices=GPUS, help="whose memory to predict (default: that of the device at hand)")
    parser.add_argument("--limit", type=float, default=360, help="seconds after which no part starts or goes on")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--child", choices=CHILDREN, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for asked, known, what in ((args.programs, PROGRAMS, "program"), (args.parts, PARTS, "part")):
        if unknown := [name for name in asked.split(",") if name not in known]:
            parser.error(f"no {what} is named {unknown[0]!r}; known are {', '.join(known)}")
    return args


def main() -> None:
    """Measures and prints tables, or JSON."""
    args = read_arguments()
    if args.child:
        print(json.dumps(CHILDREN[args.child](args)))
        return
    with tempfile.TemporaryDirectory() as cache:
        children = Children(args, cache)
        found = children.run("device")
        if "left_out" in found:
            raise SystemExit(f"gpu_real.py: JAX found no device: {found['left_out']}.")
        args.quick = args.quick or found["platform"] == "cpu"
        defaults = QUICK if args.quick else FULL
        args.sizes = {name: getattr(args, name) or default for name, default in defaults.items()}
        results = measure(args, children, found)
    if args.json:
        print(json.dumps(results, indent=2))
        return
    for table in tables(results):
        Console().print(table)


if __name__ == "__main__":
    main()
