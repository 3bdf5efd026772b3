"""`jzero plan RUN.json [KEY=VALUE ...]`: what each stage would hold and send on GPUs that are not there."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import typer
from rich.console import Console
from rich.status import Status

from jzero.cli import plan_flags as flags
from jzero.cli.exits import bad_input_exits
from jzero.cli.planned import plan_options, planned_run
from jzero.config import RunConfig
from jzero.errors import ConfigError
from jzero.plan.render.largest_table import largest_view
from jzero.plan.render.plan_table import plan_view
from jzero.plan.render.report import report_html
from jzero.plan.search.largest import Largest
from jzero.plan.search.largest import largest_model as plan_largest_model
from jzero.plan.search.largest import max_batch as plan_max_batch
from jzero.plan.search.planner import Compile, Plan, plan
from jzero.plan.search.workload import RunOptions


class _Search(TypedDict):
    """What every search is told."""

    stages: list[int]
    compiled: Compile | None
    report: Callable[[str], None]


def plan_command(
    what: flags.What = None,
    model: flags.Model = None,
    seq_len: flags.SeqLen = None,
    micro_batch: flags.MicroBatch = None,
    gpus: flags.Gpus = 8,
    gpu: flags.Gpu = "h100-80g",
    nodes: flags.Nodes = None,
    network: flags.NetworkName = "",
    host_memory: flags.HostMemory = None,
    stages: flags.Stages = "0,1,2,3",
    closed_form: flags.ClosedForm = False,
    max_batch: flags.MaxBatch = False,
    largest_model: flags.LargestModel = False,
    compile_all: flags.CompileAll = False,
    html: flags.Html = None,
    as_json: flags.AsJson = False,
) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # XLA's remarks on its own passes, which nobody here can act on
    with bad_input_exits(), _status() as status:
        if closed_form and compile_all:
            raise ConfigError("--closed-form and --compile-all exclude each other.")
        gpus_per_node = _gpus_per_node(gpus, nodes)
        if html is not None and (html.is_dir() or not html.absolute().parent.is_dir()):
            raise ConfigError(f"--html {html}: give a file in a folder that exists.")
        if max_batch + largest_model + (html is not None) > 1:
            raise ConfigError("--max-batch, --largest-model and --html exclude each other.")
        run = planned_run(what or [], model, _shorthands(seq_len, micro_batch))
        options: RunOptions = {
            **plan_options(run, n_gpus=gpus),
            "gpu": gpu,
            "gpus_per_node": gpus_per_node,
            "network": network,
            "host_memory": None if host_memory is None else int(host_memory * 10**9),
        }
        compiled: Compile | None = "nothing" if closed_form else "all" if compile_all else None
        search: _Search = {"stages": _stages(stages), "compiled": compiled, "report": status.update}
        sizes: Sequence[Largest] | None = None
        if max_batch:
            sizes = plan_max_batch(**options, **search)
        elif largest_model:
            sizes = plan_largest_model(**_of_any_size(run, options), **search)
        else:
            found = plan(**options, **search, memory_use=html is not None)
            if html is not None:
                _write(html, report_html(found, _as_overrides(found)))
    if sizes is not None:
        _print_sizes(sizes, as_json)
    else:
        _print_plan(found, as_json)


plan_command.__doc__ = flags.HELP  # long, and read by the command line, which takes docstrings for help


def _print_sizes(sizes: Sequence[Largest], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([entry.to_dict() for entry in sizes], indent=2))
    else:
        Console().print(largest_view(sizes), highlight=False)


def _print_plan(found: Plan, as_json: bool) -> None:
    changes = _as_overrides(found)
    if as_json:
        content = found.to_dict()
        content["recommendation"]["overrides"] = changes
        typer.echo(json.dumps(content, indent=2))
        return
    Console().print(plan_view(found), highlight=False)
    if changes:
        typer.echo("\n".join(["\nIn the run file, or after it on the command line:", *[f"    {c}" for c in changes]]))
    elif found.recommendation.setting is not None:
        typer.echo("The run file has this setting already.")


def _gpus_per_node(gpus: int, nodes: int | None) -> int:
    if nodes is None:
        if gpus > 8 and gpus % 8:
            raise ConfigError(f"{gpus} GPUs do not fill nodes of 8; say with --nodes how many nodes share them.")
        return 8
    if gpus % nodes:
        raise ConfigError(f"{gpus} GPUs cannot be shared equally by {nodes} nodes; give a multiple of {nodes}.")
    return gpus // nodes


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


def _of_any_size(run: RunConfig, options: RunOptions) -> dict[str, Any]:
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
