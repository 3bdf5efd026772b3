"""`jzero plan RUN.json [KEY=VALUE ...]`: what each stage would hold and send on GPUs that are not there."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import typer
from rich.console import Console
from rich.status import Status

from jzero import models
from jzero.commands.exits import bad_input_exits
from jzero.config import RunConfig, load_run
from jzero.errors import ConfigError
from jzero.plan.plan_table import plan_view
from jzero.plan.planner import Compile, Plan, plan
from jzero.plan.topology import GPUS
from jzero.trainer import language_model


def plan_command(
    run_file: Annotated[Path, typer.Argument(metavar="RUN.json", help="The run file.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the run file, by dotted key.", show_default=False),
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in all.")] = 8,
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(GPUS)}.")] = "h100-80g",
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Hosts that share the GPUs equally.", show_default="8 GPUs each")
    ] = None,
    stages: Annotated[str, typer.Option(help="Stages to look at, such as 2,3.")] = "0,1,2,3",
    closed_form: Annotated[bool, typer.Option("--closed-form", help="Compile nothing.")] = False,
    compile_all: Annotated[bool, typer.Option("--compile-all", help="Compile every stage, which may take long.")] = (
        False
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables; sizes in bytes.")] = False,
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

        # on 32 A100s, compiling nothing
        jzero plan configs/gpt-1.5b.json --gpus 32 --gpu a100-80g \
            --nodes 4 --closed-form

        # with another batch, stages 2 and 3, each of them compiled
        jzero plan configs/gpt2-small.json --stages 2,3 --compile-all \
            training_arguments.per_device_train_batch_size=16

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
        found = _plan(
            load_run(run_file, overrides or []),
            gpu=gpu,
            n_gpus=gpus,
            gpus_per_node=gpus // nodes if nodes else 8,
            stages=_stages(stages),
            compiled=compiled,
            report=status.update,
        )
    changes = _as_overrides(found)
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


@contextmanager
def _status() -> Iterator[Status]:
    with Console(stderr=True).status("reading the run file") as status:
        yield status


def _stages(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise ConfigError(f"--stages {text}: write numbers with commas between them, such as 2,3.") from None


def _plan(run: RunConfig, *, n_gpus: int, **options: Any) -> Plan:
    """Plans what `jzero train` would run."""
    model, arguments = language_model(run), run.training_arguments
    config = run.deepspeed.model_copy(update={"scheduler": None})
    rows = config.resolve(world=n_gpus, training_arguments=arguments, hidden_size=model.hidden_size).train_batch_size
    return plan(
        model=model.factory,
        loss_fn=model.loss_fn,
        config=config,
        sample_batch={"tokens": jax.ShapeDtypeStruct((rows, run.data.seq_len + 1), jnp.int32)},
        n_gpus=n_gpus,
        rematerialised=_rematerialised(run),
        training_arguments=arguments,
        hidden_size=model.hidden_size,
        **options,
    )


def _rematerialised(run: RunConfig) -> Any | None:
    """The model with rematerialised blocks; None where it has them, or where its family has no such option."""
    if run.model.get("remat") or run.deepspeed.jzero.remat:
        return None
    try:
        return models.build({**run.model, "remat": True}).factory
    except ConfigError:
        return None


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
