"""The `jzero` program: its commands, put together. Each is imported when it is run."""

import signal
from typing import Annotated

import typer

from jzero.base.interruption import second_signal_ends
from jzero.base.version import VERSION
from jzero.cli.launch_flags import BOTH_SPELLINGS, SETTINGS
from jzero.cli.lazy_group import LazyCommand, LazyGroup

COMMANDS = {
    "train": LazyCommand("jzero.cli.train", "train_command", "Train the model of a run file.", BOTH_SPELLINGS),
    "launch": LazyCommand(
        "jzero.cli.launch",
        "launch_command",
        "Start a command as several processes, on one machine or many, and watch them.",
        SETTINGS,
    ),
    "config": LazyCommand(
        "jzero.cli.config",
        "config_command",
        "Show what a configuration comes to: each key's value, where it comes from, and what becomes of it.",
    ),
    "export": LazyCommand("jzero.cli.export", "export_command", "Write a checkpoint's weights as plain files."),
    "import": LazyCommand(
        "jzero.cli.import_", "import_command", "Make a checkpoint of plain weights, for a model that jzero ships."
    ),
    "inspect": LazyCommand("jzero.cli.inspect", "inspect_command", "Show what a checkpoint holds, without loading it."),
    "plan": LazyCommand(
        "jzero.cli.plan",
        "plan_command",
        "Show what each ZeRO stage would hold and send on a cluster, and which setting to take. Needs no GPU.",
    ),
    "flops": LazyCommand(
        "jzero.cli.flops",
        "flops_command",
        "Count the floating-point operations of a training step. Needs no GPU and runs nothing.",
    ),
    "tokenize": LazyCommand(
        "jzero.cli.tokenize", "tokenize_command", "Make a token file of text, JSON lines or parquet, to train on."
    ),
    "doctor": LazyCommand(
        "jzero.cli.doctor", "doctor_command", "Show what this machine has for training, and what is wrong with it."
    ),
}


class _Commands(LazyGroup):
    lazy = COMMANDS


app: typer.Typer = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        import jax

        typer.echo(f"jzero {VERSION}, jax {jax.__version__}")
        raise typer.Exit


@app.callback()
def _jzero(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print versions.")
    ] = False,
) -> None:
    """Train Flax models under ZeRO stages 0-3 from a DeepSpeed JSON."""


def main() -> None:
    """Runs the program: a second Ctrl-C ends it at once, and one while it leaves ends it in silence."""
    with second_signal_ends():
        try:
            app()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
