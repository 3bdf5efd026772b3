"""`jzero inspect CHECKPOINT`: what a checkpoint holds, read from its header alone."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.table import Table

from jzero.base.terminal import escape
from jzero.base.types import Json
from jzero.checkpoint.format import header as headers
from jzero.checkpoint.format.header import Header
from jzero.checkpoint.run.place import find
from jzero.cli.exits import bad_input_exits


def inspect_command(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint, or a folder of them: the newest.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Show what a checkpoint holds, without loading it.

    Examples, ready to copy:

        jzero inspect runs/demo

        jzero inspect runs/demo/checkpoint-300 --json
    """
    with bad_input_exits():
        folder = find(checkpoint)
        header = headers.read(folder)
    if as_json:
        typer.echo(json.dumps(summary(folder, header), indent=2))
    else:
        Console().print(view(folder, header))


def summary(folder: Path, header: Header) -> dict[str, Json]:
    """Everything the header says, as JSON."""
    leaves = {
        name: {"shape": list(leaf.shape), "dtype": leaf.dtype, "bytes": leaf.nbytes, "checksum": leaf.checksum}
        for name, leaf in header.leaves.items()
    }
    sizes = {"bytes": _n_bytes(header), "bytes_on_disk": sum(size for size, _ in header.files.values())}
    return {"checkpoint": str(folder), **sizes, **header.metadata, "leaves": leaves}


def view(folder: Path, header: Header) -> Group:
    """The same as tables: the run, and every leaf."""
    facts = Table(show_header=False, box=None, padding=(0, 1))
    for name, value in header.metadata.items():
        if name != "config" and value not in ({}, None):
            facts.add_row(
                f"[bold]{escape(name)}[/bold]", escape(value if isinstance(value, str) else json.dumps(value))
            )
    facts.add_row("[bold]config[/bold]", "shown by --json")
    table = Table(
        title=f"{escape(str(folder))}: {len(header.leaves)} arrays, {_n_bytes(header):,} bytes", title_justify="left"
    )
    table.add_column("path", overflow="fold")
    for column in ("dtype", "shape", "bytes"):
        table.add_column(column, justify="left" if column == "dtype" else "right", no_wrap=True)
    for name, leaf in header.leaves.items():
        shape = " x ".join(map(str, leaf.shape)) or "scalar"
        table.add_row(escape(name), escape(leaf.dtype), shape, f"{leaf.nbytes:,}")
    return Group(table, facts)


def _n_bytes(header: Header) -> int:
    return sum(leaf.nbytes for leaf in header.leaves.values())
