"""The `jzero` program: its commands, put together."""

from typing import Annotated

import jax
import typer

import jzero
from jzero.cli.config import config_command
from jzero.cli.doctor import doctor_command
from jzero.cli.export import export_command
from jzero.cli.import_ import import_command
from jzero.cli.inspect import inspect_command
from jzero.cli.plan import plan_command
from jzero.cli.plan_flags import HELP as PLAN_HELP
from jzero.cli.train import train_command

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"jzero {jzero.__version__}, jax {jax.__version__}")
        raise typer.Exit


@app.callback()
def _jzero(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")
    ] = False,
) -> None:
    """Train Flax models under ZeRO stages 0-3 from a DeepSpeed JSON."""


app.command("train")(train_command)
app.command("config")(config_command)
app.command("export")(export_command)
app.command("import")(import_command)
app.command("inspect")(inspect_command)
app.command("plan", help=PLAN_HELP)(plan_command)
app.command("doctor")(doctor_command)


def main() -> None:
    """The entry point of the `jzero` program."""
    app()
