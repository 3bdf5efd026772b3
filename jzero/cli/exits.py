"""Exit statuses that the commands share, and how bad input becomes one of them."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from jzero.base.terminal import printable
from jzero.errors import JzeroError

EXIT_BAD_INPUT = 2
EXIT_SIGNAL = 128  # plus the signal's number: what shells expect of a program that a signal ended


@contextmanager
def bad_input_exits() -> Iterator[None]:
    """Prints the sentence of a `JzeroError` and ends the command."""
    try:
        yield
    except JzeroError as error:
        typer.echo(f"error: {printable(str(error))}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from None
