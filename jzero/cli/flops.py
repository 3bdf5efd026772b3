"""`jzero flops RUN.json [KEY=VALUE ...]`: the arithmetic of a training step, counted without running anything."""

import json
import math
from dataclasses import replace
from typing import Annotated, NamedTuple

import jax
import typer
from rich.console import Console
from rich.table import Table

from jzero.base.types import Json
from jzero.base.units import format_count
from jzero.cli import plan_flags as flags
from jzero.cli.exits import bad_input_exits
from jzero.cli.planned import plan_options, planned_model, planned_run
from jzero.config import Config, RunConfig
from jzero.observe.arithmetic import ModelFlops, Pairs, model_flops
from jzero.plan.estimate.step import abstract_functional
from jzero.plan.hardware.figures import GpuFigures, gpu_figures
from jzero.plan.training import Training
from jzero.sharding.trees import is_placement


class _Step(NamedTuple):
    """A training step and what it runs on.

    Attributes:
        counted: its flops.
        n_params: of the model.
        samples: sequences or images.
        tokens: in all of them; None for images.
        n_gpus: that share it.
        gpu: what each of them can do.
        precision: that the model computes in.
    """

    counted: ModelFlops
    n_params: int
    samples: int
    tokens: int | None
    n_gpus: int
    gpu: GpuFigures
    precision: str

    @property
    def seconds(self) -> float:
        """What the step takes at the peak rate."""
        return self.counted.step / self.n_gpus / self.gpu.peak_flops(self.precision)

    def to_dict(self) -> dict[str, Json]:
        return {
            "n_params": self.n_params,
            "samples": self.samples,
            "tokens": self.tokens,
            "forward_flops": self.counted.forward,
            "backward_flops": self.counted.backward,
            "step_flops": self.counted.step,
            "uncounted": list(self.counted.uncounted),
            "gpu": self.gpu.name,
            "n_gpus": self.n_gpus,
            "precision": self.precision,
            "seconds_at_peak": self.seconds,
        }


def flops_command(
    what: flags.What = None,
    model: flags.Model = None,
    gpus: flags.Gpus = 8,
    gpu: flags.Gpu = "h100-80g",
    whole_square: Annotated[
        bool, typer.Option("--whole-square", help="Count attention without its mask, as PaLM and torch do.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Count the floating-point operations of a training step. Needs no GPU and runs nothing.

    Counted are matrix products, convolutions and attention, a multiply-add as two: forward, and backward for the
    gradients that are needed. What is recomputed counts once. These are the flops of MFU.

    Examples, ready to copy:

        jzero flops configs/demo.json

        jzero flops --model llama-2-7b data.seq_len=4096 --gpus 64

        jzero flops --model gpt2 --whole-square --json
    """
    with bad_input_exits():
        run = planned_run(what or [], model)
        step = _counted(run, gpus, gpu, "all" if whole_square else "visible")
    if as_json:
        typer.echo(json.dumps(step.to_dict(), indent=2))
    else:
        Console().print(_view(step, "of all pairs of tokens" if whole_square else "of pairs that its mask shows"))


def _counted(run: RunConfig, n_gpus: int, gpu: str, pairs: Pairs) -> _Step:
    options = plan_options(run, n_gpus=n_gpus)
    training = Training(
        options["model"],
        options["loss_fn"],
        Config.load(options["config"]),
        options["sample_batch"],
        training_arguments=options.get("training_arguments"),
        hidden_size=options.get("hidden_size"),
    )
    fns = abstract_functional(replace(training, config=training.resolved(n_gpus)), n_gpus, gpu)
    params = jax.tree.leaves(fns.placements.params, is_leaf=is_placement)
    samples = fns.spec.config.train_batch_size
    return _Step(
        model_flops(fns, pairs=pairs),
        sum(math.prod(p.shape) for p in params),
        samples,
        None if planned_model(run).image else samples * run.data.seq_len,
        n_gpus,
        gpu_figures(gpu),
        fns.spec.config.precision,
    )


def _view(step: _Step, attention: str) -> Table:
    """Each figure in a row, for a person."""
    counted, table = step.counted, Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("parameters", f"{step.n_params:,}", "")
    table.add_row("forward", format_count(counted.forward, "FLOP"), "products, convolutions, attention")
    table.add_row("backward", format_count(counted.backward, "FLOP"), "of what is trained; nothing is counted twice")
    what = f"{step.tokens:,} tokens" if step.tokens else "images"
    table.add_row("step", format_count(counted.step, "FLOP"), f"of {step.samples:,} samples, {what}")
    if step.tokens:
        table.add_row("a token", format_count(counted.step / step.tokens, "FLOP"), f"attention: {attention}")
    at = f"at the peak of {step.n_gpus} {step.gpu.name} in {step.precision}"
    table.add_row("takes", format_count(step.seconds, "s"), at)
    for operation in counted.uncounted:
        table.add_row("[yellow]not counted[/yellow]", "", operation)
    return table
