"""`jzero plan RUN.json [KEY=VALUE ...]`: what each stage would hold and send on GPUs that are not there."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from jzero import models
from jzero.cli.exits import bad_input_exits
from jzero.cli.planned import plan_options, planned_run
from jzero.config import RunConfig
from jzero.errors import ConfigError
from jzero.plan.hardware.figures import GPUS
from jzero.plan.hardware.network import EXAMPLES
from jzero.plan.render.largest_table import largest_view
from jzero.plan.render.plan_table import plan_view
from jzero.plan.render.report import report_html
from jzero.plan.search.largest import largest_model as plan_largest_model
from jzero.plan.search.largest import max_batch as plan_max_batch
from jzero.plan.search.planner import Compile, Plan, plan


def plan_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN.json] [KEY=VALUE]...",
            help="The run file, unless --model names a model, and changes to it by dotted key.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Plan a published model, in bf16 with AdamW: {', '.join(models.SIZES)}.",
            show_default=False,
        ),
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sequence: data.seq_len.", show_default=False)
    ] = None,
    micro_batch: Annotated[
        int | None, typer.Option(min=1, help="Samples of a GPU and micro-batch.", show_default=False)
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in all.")] = 8,
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(GPUS)}, or a .toml file.")] = "h100-80g",
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Hosts that share the GPUs equally.", show_default="8 GPUs each")
    ] = None,
    network: Annotated[
        str, typer.Option(help=f"Between nodes, such as {EXAMPLES}.", show_default="what such GPUs come with")
    ] = "",
    host_memory: Annotated[
        float | None,
        typer.Option(
            min=0, max=1e6, metavar="GB", help="Of each node, for offloading.", show_default="shown, not limited"
        ),
    ] = None,
    stages: Annotated[str, typer.Option(help="Stages to look at, such as 2,3.")] = "0,1,2,3",
    closed_form: Annotated[bool, typer.Option("--closed-form", help="Compile nothing.")] = False,
    max_batch: Annotated[
        bool, typer.Option("--max-batch", help="Instead: the largest micro-batch that fits, per stage.")
    ] = False,
    largest_model: Annotated[
        bool, typer.Option("--largest-model", help="Instead: the largest model of the family that fits, per stage.")
    ] = False,
    compile_all: Annotated[bool, typer.Option("--compile-all", help="Compile every stage, which may take long.")] = (
        False
    ),
    html: Annotated[
        Path | None, typer.Option(help="Write a report with pictures to this file too.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, in bytes and seconds.")] = False,
) -> None:
    r"""Show what each ZeRO stage would hold and send on a cluster, and which setting to take. Needs no GPU.

    Every stage, with and without state in host memory, is worked out by a closed form, in about a second each. The
    recommended one is then compiled for the GPUs, where JAX's CUDA plugin is installed (`pip install 'jzero[plan]'`):
    its memory is the compiler's own figure.

    Examples, ready to copy:

        # the demo's model on one node of 8 H100s
        jzero plan configs/demo.json

        # 6.4B parameters on 64 H100s, 8 to a node
        jzero plan configs/gpt-1.5b.json model.n_layer=32 model.d_model=4096 \
            model.n_head=32 --gpus 64

        # on 32 A100s whose 4 nodes share 100 Gb/s each, compiling nothing
        jzero plan configs/gpt-1.5b.json --gpus 32 --gpu a100-80g \
            --nodes 4 --network 100gb-roce --closed-form

        # with another batch, stages 2 and 3, each of them compiled
        jzero plan configs/gpt2-small.json --stages 2,3 --compile-all \
            training_arguments.per_device_train_batch_size=16

        # tables and pictures in one file for the browser
        jzero plan configs/demo.json --html report.html

        # a published model; its largest micro-batch; the largest Llama
        jzero plan --model llama-2-7b --gpus 64 --seq-len 2048
        jzero plan --model gpt2-xl model.remat=true --max-batch
        jzero plan --model llama-2-7b model.remat=true --largest-model

        # for a program: the keys that the recommended setting sets
        jzero plan configs/demo.json --json | jq .recommendation.changes

    The exit status is 2, with a sentence on standard error, where something does not fit together; it is 0 also where
    no setting fits the GPUs.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's remarks on its own passes, which nobody here can act on
    compiled: Compile | None = "nothing" if closed_form else "all" if compile_all else None
    with bad_input_exits(), _status() as status:
        if closed_form and compile_all:
            raise ConfigError("--closed-form and --compile-all exclude each other.")
        if nodes is not None and gpus % nodes:
            raise ConfigError(f"{gpus} GPUs cannot be shared equally by {nodes} nodes; give a multiple of {nodes}.")
        if nodes is None and gpus > 8 and gpus % 8:
            raise ConfigError(f"{gpus} GPUs do not fill nodes of 8; say with --nodes how many nodes share them.")
        if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
            raise ConfigError(f"--html {html}: give a file in a folder that exists.")
        if max_batch + largest_model + (html is not None) > 1:
            raise ConfigError("--max-batch, --largest-model and --html exclude each other.")
        run = planned_run(what or [], model, _shorthands(seq_len, micro_batch))
        options = plan_options(run, n_gpus=gpus) | {
            "gpu": gpu,
            "gpus_per_node": gpus // nodes if nodes else 8,
            "network": network,
            "host_memory": None if host_memory is None else int(host_memory * 10**9),
            "stages": _stages(stages),
            "compiled": compiled,
            "report": status.update,
        }
        if max_batch or largest_model:
            sizes = plan_max_batch(**options) if max_batch else plan_largest_model(**_of_any_size(run, options))
        else:
            found = plan(**options, memory_use=html is not None)
            changes = _as_overrides(found)
            if html is not None:
                _write(html, report_html(found, changes))
    if max_batch or largest_model:
        if as_json:
            typer.echo(json.dumps([entry.to_dict() for entry in sizes], indent=2))
        else:
            Console().print(largest_view(sizes), highlight=False)
        return
    if as_json:
        content = found.to_dict()
        content["recommendation"]["overrides"] = changes
        typer.echo(json.dumps(content, indent=2))
        return
    console = Console()
    console.print(plan_view(found), highlight=False)
    if changes:
        typer.echo("\n".join(["\nIn the run file, or after it on the command line:", *[f"    {c}" for c in changes]]))
    elif found.recommendation.setting is not None:
        typer.echo("The run file has this setting already.")


def _write(path: Path, content: str) -> None:
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html {path}: {error.strerror}.") from error


@contextmanager
def _status() -> Iterator[Status]:
    with Console(stderr=True).status("reading the run file") as status:
        yield status


def _stages(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--stages {text}: write numbers with commas between them, such as 2,3.") from None


def _shorthands(seq_len: int | None, micro_batch: int | None) -> list[str]:
    keys = {"data.seq_len": seq_len, "training_arguments.per_device_train_batch_size": micro_batch}
    return [f"{key}={value}" for key, value in keys.items() if value is not None]


def _of_any_size(run: RunConfig, options: dict[str, Any]) -> dict[str, Any]:
    """What a search for the largest model takes: everything but the model, and the sequence's length."""
    fixed = {"loss_fn", "sample_batch", "rematerialised", "hidden_size"}
    rest = {name: value for name, value in options.items() if name not in fixed}
    return {**rest, "model": run.model, "seq_len": run.data.seq_len}


def _as_overrides(found: Plan) -> list[str]:
    """The recommended setting as changes to the run file."""
    setting = found.recommendation.setting
    if setting is None:
        return []
    changes = {f"deepspeed.{path}": value for path, value in found.changes.items()}
    if setting.micro_batch != found.base.micro_batch:  # where "auto" is filled from, and what numbers must agree with
        changes["training_arguments.per_device_train_batch_size"] = setting.micro_batch
        changes["training_arguments.gradient_accumulation_steps"] = setting.accumulation
    if setting.remat:
        changes["model.remat"] = True
    return [f"{path}={json.dumps(value).strip(chr(34))}" for path, value in changes.items()]
