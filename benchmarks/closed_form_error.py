"""How far the closed form is from compiled programs: lasting state and peak, for models of many kinds at every stage.

`--platform gpu` compiles bf16 steps of gigabytes for 8 H100s that are not there, `--platform cpu` fp32 steps for 8
simulated devices. Nothing runs. The status is 1 where lasting state is off by more than 5 % or a peak by 15 %.

    python benchmarks/closed_form_error.py --platform cpu --models gpt,lstm --stages 0,3
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import programs  # noqa: F401  # before jax, so that the compiler stays quiet

# isort: split
import jax
from models import Subject, chain, experts, gpt, llama, lstm, resnet, vit
from peers import deepspeed_config
from rich.console import Console
from rich.table import Table

import jzero
from jzero.config import Config
from jzero.plan import closed_form, compile_step, estimate_step, read_program
from jzero.start import functional

UP_TO = {"lasting": 0.05, "peak": 0.15}
_SMALL: dict[str, Any] = {"layers": 4, "d_model": 768, "seq_len": 512, "vocab_size": 8192}
_UNROLLED: dict[str, Any] = {"scan_layers": False, "remat": False}
SUBJECTS: dict[str, dict[str, Callable[[], Subject]]] = {
    "gpu": {
        "gpt": partial(gpt, layers=24, d_model=2048),
        "gpt-unrolled": partial(gpt, layers=12, d_model=2048, **_UNROLLED),
        "llama": partial(llama, layers=16, d_model=2048),
        "resnet": resnet,
        "vit": vit,
        "lstm": lstm,
        "chain": chain,
        "experts": experts,
    },
    "cpu": {
        "gpt": partial(gpt, **_SMALL | {"layers": 6}),
        "gpt-unrolled": partial(gpt, layers=4, d_model=512, seq_len=256, vocab_size=8192, **_UNROLLED),
        "llama": partial(llama, **_SMALL),
        "resnet": partial(resnet, size=128),
        "vit": partial(vit, layers=4, d_model=512),
        "lstm": partial(lstm, layers=3, d_model=512, seq_len=128, vocab_size=8192),
        "chain": partial(chain, layers=6, d_model=1024, rows=512),
        "experts": partial(experts, layers=3, n_experts=4, d_model=512, tokens=1024),
    },
}
"""By platform and name; of a size that one of its devices could hold."""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Bytes of one device: what the closed form says and what the compiled program takes.

    Attributes:
        lasting: what the program is given.
        peak: the most that it takes.
        lasting_estimate: the closed form's.
        peak_estimate: the closed form's.
    """

    lasting: int
    peak: int
    lasting_estimate: int
    peak_estimate: int

    @property
    def errors(self) -> dict[str, float]:
        """How much more the closed form says, as a share."""
        return {
            "lasting": self.lasting_estimate / self.lasting - 1,
            "peak": self.peak_estimate / self.peak - 1,
        }

    @property
    def is_close(self) -> bool:
        """Whether both are within `UP_TO`."""
        return all(abs(error) <= UP_TO[part] for part, error in self.errors.items())


def compare(subject: Subject, stage: int, *, on_cpu: bool) -> Comparison:
    """Estimates and compiles the step of one model, in fp32 for 8 CPUs or in bf16 for 8 H100s."""
    rows = 8 * subject.rows_per_gpu
    run = {"model": subject.model, "loss_fn": subject.loss_fn, "sample_batch": subject.batch(rows)}
    config = deepspeed_config(stage, rows, "fp32" if on_cpu else "bf16")
    if not on_cpu:
        estimate, memory = estimate_step(**run, config=config), compile_step(**run, config=config).memory
        return Comparison(memory.argument, memory.peak, estimate.lasting, estimate.peak)
    fns = functional(**run, config=Config.load(config).resolve(world=8), mesh=jzero.make_mesh(jax.devices("cpu")[:8]))
    # The code that CPUs run need not be good, and takes the same memory.
    compiled = fns.step.lower(fns.state, fns.batch).compile(compiler_options={"xla_backend_optimization_level": 0})
    memory, estimate = read_program(compiled).memory, closed_form(fns)
    # The figure for the peak leaves temporaries out on CPUs, where they are one allocation for the whole program.
    peak = memory.argument + memory.output - memory.alias + memory.temp
    return Comparison(memory.argument, peak, estimate.lasting, estimate.peak)


def main() -> None:
    """Compares, and prints a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--platform", choices=SUBJECTS, default="gpu")
    parser.add_argument("--models", default=",".join(SUBJECTS["gpu"]), help="with commas (default: %(default)s)")
    parser.add_argument("--stages", default="0,1,2,3", help="with commas (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    subjects = SUBJECTS[args.platform]
    if unknown := [name for name in args.models.split(",") if name not in subjects]:
        parser.error(f"no model is named {unknown[0]!r}; known are {', '.join(subjects)}")
    if on_cpu := args.platform == "cpu":
        jzero.simulate_devices(8)
    found: dict[tuple[str, int], Comparison] = {}
    with Console(stderr=True).status("") as status:
        for name in args.models.split(","):
            for stage in map(int, args.stages.split(",")):
                status.update(f"{name}, stage {stage}")
                found[name, stage] = compare(subjects[name](), stage, on_cpu=on_cpu)
    if args.json:
        rows = [{"model": n, "stage": s, **dataclasses.asdict(c), "errors": c.errors} for (n, s), c in found.items()]
        print(json.dumps(rows))
    else:
        Console().print(_table(found, f"Closed form and compiled program, 8 {args.platform.upper()}s; GB each"))
    sys.exit(not all(c.is_close for c in found.values()))


def _table(found: dict[tuple[str, int], Comparison], title: str) -> Table:
    table = Table(title=title)
    for column in ("model", "stage", "lasting", "error", "peak, compiled", "closed form", "error"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for (name, stage), c in found.items():
        table.add_row(
            name, f"{stage}", f"{c.lasting / 1e9:.3f}", f"{c.errors['lasting']:+.1%}", f"{c.peak / 1e9:.3f}",
            f"{c.peak_estimate / 1e9:.3f}", f"{c.errors['peak']:+.1%}", style=None if c.is_close else "red",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    main()
