"""`jzero doctor`: what this machine has for training, and what is wrong with it."""

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from jzero.base.terminal import escape
from jzero.cli.exits import bad_input_exits
from jzero.doctor import Finding, examine, this_machine
from jzero.doctor.settings import SETTINGS

EXIT_WRONG = 1

_BY = {
    "jzero": "jzero sets for each program",
    "you": "you export before the start (options of XLA as --NAME=VALUE in XLA_FLAGS)",
    "leave": "leave alone unless measured",
}
_MARKS = {"fine": "[green]ok[/]", "note": "[yellow]note[/]", "wrong": "[red]wrong[/]"}


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    hostfile: Annotated[
        Path | None,
        typer.Option("--hostfile", "-H", help="Look at all hosts of this file, by ssh, and compare them."),
    ] = None,
    settings: Annotated[
        bool, typer.Option("--settings", help="Show the settings of JAX, XLA and NCCL that matter on GPUs instead.")
    ] = False,
) -> None:
    """Show what this machine has for training, and what is wrong with it.

    Versions that do not belong together, GPUs that JAX does not use, a /dev/shm that is too small for NCCL, variables
    that make training crawl, ports that are down, and what a launcher says of the other processes. It changes nothing
    and connects to nothing. Run it as training is run: in the same container, by the same launcher.

    Examples, ready to copy:

        # on this machine
        jzero doctor

        # once on each node of a SLURM job
        srun --ntasks-per-node=1 jzero doctor

        # on all hosts of a file: what each has, and what does not fit together
        jzero doctor --hostfile hosts

        # for a program: only what is wrong
        jzero doctor --json | jq '.findings[] | select(.level == "wrong")'

        # which settings jzero makes itself, which to export, and what is set now
        jzero doctor --settings

    The exit status is 1 where something is wrong; notes do not count.
    """
    if settings:
        _show_settings(as_json)
        return
    by_host = {"": examine(this_machine())} if hostfile is None else _examine_hosts(hostfile)
    findings = [finding for some in by_host.values() for finding in some]
    n_wrong = sum(f.level == "wrong" for f in findings)
    if as_json:
        listed = [
            {**({"host": host} if hostfile else {}), **dataclasses.asdict(f)} for host in by_host for f in by_host[host]
        ]
        typer.echo(json.dumps({"wrong": n_wrong, "findings": listed}, indent=2))
    else:
        console = Console()
        for host, some in by_host.items():
            if host:
                console.print(f"[bold]{escape(host)}[/]")
            console.print(_table(some), highlight=False)
        console.print(_verdict(n_wrong, sum(f.level == "note" for f in findings)))
    if n_wrong:
        raise typer.Exit(EXIT_WRONG)


def _examine_hosts(hostfile: Path) -> dict[str, list[Finding]]:
    from jzero.cli.doctor_hosts import examine_hosts  # only this starts processes

    with bad_input_exits():
        return examine_hosts(hostfile)


def _show_settings(as_json: bool) -> None:
    rows = [dataclasses.asdict(setting) | {"present": setting.present(os.environ)} for setting in SETTINGS]
    if as_json:
        typer.echo(json.dumps({"settings": rows}, indent=2))
        return
    console = Console()
    for by, title in _BY.items():
        console.print(f"[bold]{title}[/]")
        for row in (row for row in rows if row["by"] == by):
            now = f"  [yellow]now {escape(row['present'])}[/]" if row["present"] else ""
            console.print(f"  {row['name']}: {escape(row['value'].replace('`', ''))}{now}", highlight=False)
            console.print(Padding(f"[dim]{escape(row['why'].replace('`', ''))}[/]", (0, 0, 0, 6)), highlight=False)


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column()
    table.add_column(overflow="fold")
    for topic, some in groupby(findings, key=lambda f: f.topic):
        title = topic
        for mark, what in _lines(list(some)):
            table.add_row(title, mark, what)
            title = ""
    return table


def _lines(findings: Sequence[Finding]) -> Iterable[tuple[str, str]]:
    """What is fine in one line, then each of the others with its advice."""
    if fine := [f.what for f in findings if f.level == "fine"]:
        yield _MARKS["fine"], escape("; ".join(fine))
    for finding in findings:
        if finding.level != "fine":
            yield _MARKS[finding.level], f"[bold]{escape(finding.what)}[/]: {escape(finding.advice)}"


def _verdict(n_wrong: int, n_notes: int) -> str:
    notes = f"{n_notes} note{'s' * (n_notes != 1)}"
    if n_wrong:
        return f"[red]{n_wrong} {'thing is' if n_wrong == 1 else 'things are'} wrong[/], {notes}."
    return f"[green]Nothing is wrong[/], {notes}."
