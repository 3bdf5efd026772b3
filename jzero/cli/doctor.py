"""`jzero doctor`: what this machine has for training, and what is wrong with it."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from jzero.base.terminal import escape
from jzero.doctor import Finding, examine, this_machine

EXIT_WRONG = 1

_MARKS = {"fine": "[green]ok[/]", "note": "[yellow]note[/]", "wrong": "[red]wrong[/]"}


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
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

        # for a program: only what is wrong
        jzero doctor --json | jq '.findings[] | select(.level == "wrong")'

    The exit status is 1 where something is wrong; notes do not count.
    """
    findings = examine(this_machine())
    n_wrong = sum(f.level == "wrong" for f in findings)
    if as_json:
        typer.echo(json.dumps({"wrong": n_wrong, "findings": [dataclasses.asdict(f) for f in findings]}, indent=2))
    else:
        console = Console()
        console.print(_table(findings), highlight=False)
        console.print(_verdict(n_wrong, sum(f.level == "note" for f in findings)))
    if n_wrong:
        raise typer.Exit(EXIT_WRONG)


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
