"""Writes the tables of docs/results: what programs compiled for clusters of GPUs hold and send, beside known figures.

`paper` is the ZeRO paper's table of model states (Rajbhandari et al. 2020, section 5.4), `tutorial` the way of a model
of 1.5B parameters from data parallelism to ZeRO-3, `175b` a GPT-3. Nothing runs, and no GPU is needed. Each table
takes some minutes on two cores; without names all are written.

    python benchmarks/results.py paper tutorial 175b
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import programs  # noqa: F401  # before jax, so that the compiler stays quiet

# isort: split
from models import Subject, gpt
from rich.console import Console
from rich.status import Status

from jzero.plan import ClosedForm, Cluster, Program, compile_step, estimate_step

BF16: dict[str, Any] = {"bf16": {"enabled": True}, "communication_data_type": "bf16"}
GPT_3 = [(24, 2048), (32, 2560), (32, 4096), (40, 5120), (64, 9216), (96, 12288)]  # layers and width: 1.3B to 175B


@dataclasses.dataclass(frozen=True)
class Found:
    """One program: the closed form of its step, and the step compiled."""

    n_params: int
    estimate: ClosedForm
    program: Program

    @property
    def state(self) -> int:
        """Bytes of master parameters and optimizer state; the batch and some counters are left out."""
        return self.program.memory.argument - self.estimate.batch

    @property
    def peak(self) -> int:
        """Bytes of the GPU at the fullest moment."""
        return self.program.memory.peak

    @property
    def host(self) -> int:
        """Bytes of host memory for one GPU."""
        return self.program.memory.host_argument + self.program.memory.host_temp

    def gradients(self, n_gpus: int, stage: int) -> int:
        """Bytes of all gradients in the form in which they last: whole at stage 1, what scatters leave at 2 and 3."""
        if n_gpus == 1:  # nothing travels
            return self.estimate.gradients
        read = self.program.total_bytes("reduce-scatter")
        return read if stage < 2 else read // n_gpus


def find(subject: Subject, n_gpus: int, zero: dict[str, Any], *, gpu: str = "h100-80g", **sections: Any) -> Found:
    """Estimates and compiles a step with AdamW."""
    given = run(subject, n_gpus, zero, **sections)
    return Found(subject.n_params, estimate_step(**given), compile_step(**given, gpu=gpu))


def run(subject: Subject, n_gpus: int, zero: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """The arguments of `estimate_step` and `compile_step`."""
    n_micro = sections.get("gradient_accumulation_steps", 1)
    rows = n_gpus * subject.rows_per_gpu * n_micro
    config = {"train_batch_size": rows, "zero_optimization": zero, "optimizer": {"type": "AdamW"}, **sections}
    return {
        "model": subject.model,
        "loss_fn": subject.loss_fn,
        "config": config,
        "sample_batch": subject.batch(rows),
        "n_gpus": n_gpus,
    }


def paper(status: Status) -> Iterator[str]:
    """The ZeRO paper's table."""
    sizes = {"7.5B": gpt(), "128B": gpt(layers=101, d_model=10240)}
    zero = {
        1: {"stage": 1},
        2: {"stage": 2},
        3: {"stage": 3, "overlap_comm": False, "stage3_param_persistence_threshold": 0},
    }
    yield PAPER
    most = 0.0
    for name, subject in sizes.items():
        rows = []
        for n_gpus in (1, 4, 16, 64, 256, 1024):
            for stage in (1, 2, 3):
                status.update(f"{name}, stage {stage} on {n_gpus} GPUs")
                found = find(subject, n_gpus, zero[stage], **BF16)
                total, share = found.state + found.gradients(n_gpus, stage), found.n_params / n_gpus
                limit = paper_bytes(stage, n_gpus) * found.n_params
                if total > limit or (stage == 3 and total > 14.1 * share):
                    sys.exit(f"{name}, stage {stage} on {n_gpus} GPUs: {total} bytes are more than they should be.")
                most = max(most, total / share if stage == 3 else 0.0)
                rows.append([
                    f"{n_gpus}", f"{stage}", gb(limit), gb(found.state), gb(total - found.state), gb(total),
                    f"{total / share:.2f}" if stage == 3 else "", gb(found.peak),
                ])  # fmt: skip
        columns = ["N", "stage", "paper", "state", "gradients", "both", "both x N / P", "peak"]
        yield f"## {name}: {subject.n_params / 1e9:.2f}B parameters\n\n{table(columns, rows)}"
    yield PAPER_READING.format(most=most)


PAPER = """# Model states: the ZeRO paper's table

GB per GPU of a GPT in bf16 with AdamW, its layers scanned and rematerialised, one sequence of 1024 tokens per H100.
*Paper* is the formula of section 5 at the model's own number of parameters P, for N GPUs: (4 + 12/N) P, (2 + 14/N) P
and 16 P/N bytes at stages 1, 2 and 3. *State* is what lasts (fp32 master parameters and moments) as the compiled
program takes it. *Gradients* are all of them in the form in which they last: whole at stage 1, what the program's
reduce-scatters leave at 2 and 3 (with one GPU, where nothing travels, the closed form's). *Peak* is the program's.

The formula counts gradients in 16 bits, so `communication_data_type` is bf16 here (by default they travel in fp32); it
keeps nothing whole at stage 3, so `stage3_param_persistence_threshold` is 0; and `overlap_comm` is off, which takes the
least memory."""

PAPER_READING = """State and gradients are never above the paper's figure, and at stage 3 at most {most:.2f} bytes times
P/N: 12 of state and 2 of gradients. The paper's other 2 bytes, a 16-bit copy of the parameters, last nowhere in jzero:
the copy is made from the master parameters when they are gathered. At stages 1 and 2 all of it is there during a step
and shows in the peak; at stage 3 only the layers in use are. The peak also has activations, logits and gradients on
their way, which no formula here counts: with many GPUs they are what is left at stage 3. A program whose peak is above
the 78 GB that an H100 can give is compiled all the same."""


def tutorial(status: Status) -> Iterator[str]:
    """From data parallelism to ZeRO-3 with 1.5B parameters."""
    cluster, cpu = Cluster("a100-80g", 32), {"device": "cpu"}
    settings = {
        "data parallelism (stage 0)": {"stage": 0},
        "ZeRO-1": {"stage": 1},
        "ZeRO-2": {"stage": 2},
        "ZeRO-3": {"stage": 3, "overlap_comm": False},
        "ZeRO-3, optimizer on the host": {"stage": 3, "overlap_comm": False, "offload_optimizer": cpu},
    }
    fp16: dict[str, Any] = {"gpu": cluster.gpu, "fp16": {"enabled": True}}
    rows, largest = [], []
    for remat in (False, True):
        subject = gpt(layers=48, d_model=1600, heads=25, vocab_size=50257, remat=remat)
        subject = dataclasses.replace(subject, rows_per_gpu=4)
        for name, zero in settings.items():
            status.update(f"1.5B, {name}, {'rematerialised' if remat else 'activations kept'}")
            found = find(subject, 32, zero, **fp16, gradient_accumulation_steps=4)
            rows.append([
                name, "yes" if remat else "no", gb(found.state), gb(found.peak), gb(found.host),
                gb(found.program.wire_bytes()), fits(found.peak, cluster),
            ])  # fmt: skip
    for name in ("data parallelism (stage 0)", "ZeRO-3", "ZeRO-3, optimizer on the host"):
        best = bigger = None
        for layers, width in GPT_3:
            status.update(f"largest model, {name}: {layers} layers of width {width}")
            subject = gpt(layers=layers, d_model=width, vocab_size=50257)
            bigger = estimate_step(**run(subject, 32, settings[name], fp16={"enabled": True})).peak
            if bigger > cluster.usable:
                break
            best, bigger = subject, None
        assert best is not None
        found = find(best, 32, settings[name], **fp16)
        largest.append([name, billions(found.n_params), gb(found.peak), gb(8 * found.host), gb(bigger or 0)])
    columns = ["", "remat", "state", "peak", "host", "sent", "fits"]
    yield f"{TUTORIAL}\n\n{table(columns, rows)}"
    columns = ["", "largest model", "peak", "host, per node", "peak of the next"]
    yield f"{LARGEST}\n\n{table(columns, largest)}"
    yield TUTORIAL_READING


TUTORIAL = """# 1.5B parameters on 32 A100s, from data parallelism to ZeRO-3

GB per GPU and step. The largest GPT-2 (48 layers of width 1600, 1.56B parameters) on 4 nodes of 8 A100-80G with 100
Gb/s between them, in fp16 with AdamW, 4 sequences of 1024 tokens a GPU, 4 micro-batches. *State* is what lasts on the
GPU, *host* what lies in host memory for it, *sent* what one GPU sends in all collectives of a step, gradients in fp32.
*Fits* is within the 92 % of the GPU's memory that a program can count on."""

LARGEST = """## The largest model

Of the sizes in GPT-3's table and 66B, with one sequence of 1024 tokens a GPU and every layer rematerialised: the
largest that fits, compiled, and the next one's peak by the closed form."""

TUTORIAL_READING = """The tutorials' 72 and 38 GB have most likely other activations in them: here four sequences keep
58 GB of them, which no stage divides, and with rematerialised layers next to nothing is left of those. What the
stages do divide falls from 33 GB to 3 with rematerialisation. The traffic told, 6 and 9 GB, is the paper's 2 P and 3
P elements in 16 bits (6.2 and 9.3 GB), for a step of one micro-batch. With four of them data parallelism and stage 1
still sum gradients once, in fp32 by default; stages 2 and 3 scatter them after each, and stage 3 gathers parameters
twice for each: 4 x (2 x 3.1 + 6.2) GB. So accumulation makes stage 3 send 4 times as much as data parallelism, not
1.5 times, and ZeRO-1, whose parameters return in 16 bits, less than it. The largest models told, 2B and 10B, agree
for data parallelism alone: with one sequence a GPU, 32 GPUs train 66B at stage 3, and 175B with the optimizer in 524
GB of host memory a node."""


def gpt_3(status: Status) -> Iterator[str]:
    """175B parameters."""
    subject = gpt(layers=96, d_model=12288, seq_len=2048, vocab_size=50257)
    rows = []
    for n_gpus in (8, 64, 256, 1024):
        for stage, told in ((1, "450"), (2, "300"), (3, "150")):
            status.update(f"175B, stage {stage} on {n_gpus} GPUs")
            zero = {"stage": stage} if stage < 3 else {"stage": stage, "overlap_comm": False}
            found = find(subject, n_gpus, zero, **BF16)
            memory, formula = found.program.memory, paper_bytes(stage, n_gpus) * found.n_params
            rows.append([
                f"{n_gpus}", f"{stage}", told if n_gpus == 8 else "", gb(formula), gb(found.state), gb(found.peak),
                gb(found.peak - memory.argument), gb(found.program.wire_bytes()),
                fits(found.peak, Cluster("h100-80g", n_gpus)),
            ])  # fmt: skip
    columns = ["N", "stage", "told", "paper", "state", "peak", "beside what lasts", "sent", "fits"]
    yield f"{SIZE_175B}\n\n{table(columns, rows)}"
    yield READING_175B


SIZE_175B = """# 175B parameters

GB per GPU and step of a GPT-3 (96 layers of width 12288) on H100s, in bf16 with AdamW, one sequence of 2048 tokens a
GPU, layers scanned and rematerialised, gradients in 16 bits (`communication_data_type`), `overlap_comm` off. *Told* are
figures that tutorials give for 8 GPUs, *paper* is the ZeRO paper's formula for model states."""

READING_175B = """Nothing that 8 GPUs could hold: what lasts, 12 bytes a parameter, is 262 GB for each of them before a
single gradient. By the paper's own formula the figures told, 450, 300 and 150 GB, belong to 82, 80 and 75 billion
parameters on 8 GPUs, not to 175. With stage 3, 64 H100s hold this model, for there everything but the layers in use,
activations and logits is divided; stages 1 and 2 never do, at any N, since 2 bytes a parameter stay whole in the step:
350 GB of weights, and as much again of gradients at stage 1. Stage 3 sends half as much again as the others, two
gathers and a scatter in place of one of each."""

TABLES = {"paper": paper, "tutorial": tutorial, "175b": gpt_3}


def paper_bytes(stage: int, n_gpus: int) -> float:
    """Bytes of model state a parameter by the ZeRO paper's formula."""
    return {1: 4 + 12 / n_gpus, 2: 2 + 14 / n_gpus, 3: 16 / n_gpus}[stage]


def fits(peak: int, cluster: Cluster) -> str:
    """Whether a program can have so much of a GPU."""
    return "yes" if peak <= cluster.usable else "no"


def gb(n_bytes: float) -> str:
    """Gigabytes in three digits."""
    value = n_bytes / 1e9
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}" if value else "-"


def billions(n: int) -> str:
    """A number of parameters."""
    return f"{n / 1e9:.1f}B"


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table whose columns after the first are aligned to the right."""
    lines = [columns, ["---", *["--:"] * (len(columns) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Compiles, and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"some of {', '.join(TABLES)} (default: all)")
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent.parent / "docs" / "results")
    args = parser.parse_args()
    if unknown := set(args.tables) - set(TABLES):
        parser.error(f"no table is named {min(unknown)!r}; known are {', '.join(TABLES)}")
    console = Console(stderr=True)
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.tables or TABLES:
        path = args.folder / f"{name}.md"
        with console.status(f"table {name}") as status:
            title, *parts = "\n\n".join(TABLES[name](status)).split("\n\n")
        command = f"Made by `python benchmarks/results.py {name}` from compiled programs; nothing ran."
        path.write_text("\n\n".join([title, command, *parts]) + "\n")
        console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
