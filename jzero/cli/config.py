"""`jzero config FILE`: what a configuration comes to, key by key."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from jzero import models
from jzero.base.terminal import printable
from jzero.cli.exits import EXIT_BAD_INPUT
from jzero.config import Config, TrainingArguments, load_run
from jzero.config.resolve.world import World, candidate_worlds
from jzero.config.schema.building import build
from jzero.config.schema.section import Trace
from jzero.config.show.display import config_object, config_view
from jzero.config.sources.load import read_object
from jzero.errors import ConfigError, JzeroError


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
        typer.Option(min=1, help="Devices that take different data.", show_default="what the file fits"),
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
        config, shards = _load(file, training_arguments, world)
    except JzeroError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None
    if as_json:
        found = config_object(config, world=shards.size, defaults=show_all)
        typer.echo(json.dumps({**found, "world_origin": shards.origin}, indent=2))
    else:
        said = "" if world else shards.sentence
        Console().print(config_view(config, world=shards.size, defaults=show_all, said=said), highlight=False)


def _load(file: Path, arguments_file: Path | None, world: int | None) -> tuple[Config, World]:
    """Resolves the configuration in a file as far as what is known goes, for this number of devices."""
    arguments, hidden_size = None, None
    if "deepspeed" in read_object(file):
        run = load_run(file)
        config, arguments, hidden_size = run.deepspeed, run.training_arguments, models.build(run.model).hidden_size
    else:
        config = Config.load(file)
    if arguments_file is not None:
        trace = Trace()
        arguments = build(TrainingArguments, read_object(arguments_file), file=str(arguments_file), trace=trace)
        for note in trace.notes:
            config = config.replaced({}, note=f"{arguments_file}: {note}")
    worlds = [World(world, "were given")] if world else candidate_worlds(config)
    known = {"training_arguments": arguments, "hidden_size": hidden_size}
    for candidate in worlds:
        with suppress(ConfigError):
            return config.resolve(world=candidate.size, **known, partly=True), candidate
    return config.resolve(world=worlds[-1].size, **known, partly=True), worlds[-1]
