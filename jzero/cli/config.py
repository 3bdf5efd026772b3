"""`jzero config FILE`: what a configuration comes to, key by key."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jzero import models
from jzero.base.terminal import printable
from jzero.cli.exits import EXIT_BAD_INPUT
from jzero.config import Config, TrainingArguments, load_run
from jzero.config.resolve.batch import NAMES
from jzero.config.schema.section import build
from jzero.config.show.display import config_object, config_view
from jzero.config.sources.load import read_object
from jzero.errors import JzeroError


def config_command(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A DeepSpeed file, a run file or one of Accelerate.", show_default=False),
    ],
    training_arguments: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Fill every "auto" from these Hugging Face training arguments (JSON).'),
    ] = None,
    world: Annotated[
        int | None,
        typer.Option(min=1, help="Devices that take different data.", show_default="what the batch sizes imply, or 8"),
    ] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show the keys that nobody has set, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    r"""Show what a configuration comes to: each key's value, where it comes from, and what becomes of it.

    A key is *honoured*, *translated* into what does the same under XLA, has *no effect here* for the reason given, or
    is *refused*. An "auto" that nothing fills yet is shown as open.

    Examples, ready to copy:

        # what becomes of a DeepSpeed file
        jzero config configs/ds_stage3.json

        # on 64 devices, with "auto" filled as Hugging Face fills it
        echo '{"learning_rate": 3e-4, "bf16": true}' > args.json
        jzero config configs/ds_stage3.json --training-arguments args.json \
            --world 64

        # a run file, filled from its own training arguments; all keys
        jzero config configs/demo.json --all | less

        # for a program: the keys that have no effect
        jzero config configs/ds_stage3.json --all --json \
            | jq -r '.keys[] | select(.verdict == "no effect here") | .path'

    The exit status is 2, with a sentence on standard error, where the configuration is refused.
    """
    try:
        config, world = _load(file, training_arguments, world)
    except JzeroError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    if as_json:
        typer.echo(json.dumps(config_object(config, world=world, defaults=show_all), indent=2))
    else:
        Console().print(config_view(config, world=world, defaults=show_all), highlight=False)


def _load(file: Path, arguments_file: Path | None, world: int | None) -> tuple[Config, int]:
    """Resolves the configuration in a file as far as what is known goes, for this number of devices."""
    arguments, hidden_size = None, None
    if "deepspeed" in read_object(file):
        run = load_run(file)
        config, arguments, hidden_size = run.deepspeed, run.training_arguments, models.build(run.model).hidden_size
    else:
        config = Config.load(file)
    if arguments_file is not None:
        arguments = build(TrainingArguments, read_object(arguments_file), file=str(arguments_file))
    world = world or _implied_world(config)
    return config.resolve(world=world, training_arguments=arguments, hidden_size=hidden_size, partly=True), world


def _implied_world(config: Config) -> int:
    """The number of devices for which three given batch sizes fit."""
    total, micro, accumulation = (getattr(config, name) for name in NAMES)
    if all(isinstance(size, int) for size in (total, micro, accumulation)) and total % (micro * accumulation) == 0:
        return total // (micro * accumulation)
    return 8
