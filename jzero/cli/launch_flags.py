"""The options of `jzero launch`."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

BOTH_SPELLINGS = {"token_normalize_func": lambda name: name.replace("_", "-")}
"""DeepSpeed writes its options with underscores; both are taken."""

SETTINGS = {**BOTH_SPELLINGS, "allow_interspersed_args": False}
"""What follows the command's first word is the command's."""

_WHICH, _HOW, _AGAIN = "Which hosts and GPUs", "How they are started", "When something fails"
_PRINT = "For a cluster's own means"

Command: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="COMMAND...",
        help="What each process runs: `train RUN.json ...`, a Python script, or any program.",
        show_default=False,
    ),
]
Hostfile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--hostfile", "-H", help="Lines NAME slots=N, as for DeepSpeed.", rich_help_panel=_WHICH),
]
Include: TypeAlias = Annotated[
    str, typer.Option("--include", "-i", metavar="NAME[:SLOT,...]@...", help="Only these.", rich_help_panel=_WHICH)
]
Exclude: TypeAlias = Annotated[
    str, typer.Option("--exclude", "-e", metavar="NAME[:SLOT,...]@...", help="All but these.", rich_help_panel=_WHICH)
]
NumNodes: TypeAlias = Annotated[
    int | None, typer.Option("--num-nodes", min=1, help="The first so many hosts.", rich_help_panel=_WHICH)
]
NumGpus: TypeAlias = Annotated[
    int | None, typer.Option("--num-gpus", min=1, help="The first so many GPUs of each host.", rich_help_panel=_WHICH)
]
ProcsPerNode: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--procs-per-node",
        min=1,
        help="Processes of each host, which share its GPUs evenly.",
        show_default="one a GPU, or one",
        rich_help_panel=_HOW,
    ),
]
MasterAddr: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--master-addr",
        help="Where the others find the first host.",
        show_default="the address that it finds for itself",
        rich_help_panel=_HOW,
    ),
]
MasterPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--master-port",
        min=1,
        max=65535,
        help="A port that is free there.",
        show_default="one that is picked there, each time",
        rich_help_panel=_HOW,
    ),
]
SshPort: TypeAlias = Annotated[
    int | None, typer.Option("--ssh-port", min=1, max=65535, help="Of the hosts' ssh.", rich_help_panel=_HOW)
]
Export: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--export",
        metavar="NAME[=VALUE]",
        help="One more variable for all processes; may be given several times.",
        show_default=False,
        rich_help_panel=_HOW,
    ),
]
Logs: TypeAlias = Annotated[
    str, typer.Option("--logs", metavar="FOLDER", help="Where each process's output is kept.", rich_help_panel=_HOW)
]
BindCpus: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--bind-cpus/--no-bind-cpus", help="Bind each process to the CPUs near its GPUs.", rich_help_panel=_HOW
    ),
]
Grace: TypeAlias = Annotated[
    float,
    typer.Option(
        "--grace", min=0, max=3600, help="Seconds between SIGTERM and SIGKILL for the rest.", rich_help_panel=_AGAIN
    ),
]
Print: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--print",
        metavar="slurm|jobset|trainjob|mpirun",
        help="Print a script or manifest instead.",
        rich_help_panel=_PRINT,
    ),
]
JobName: TypeAlias = Annotated[str, typer.Option("--job-name", help="Of what is printed.", rich_help_panel=_PRINT)]
Image: TypeAlias = Annotated[
    str | None, typer.Option("--image", help="Of the containers, for Kubernetes.", rich_help_panel=_PRINT)
]
MaxRestarts: TypeAlias = Annotated[
    int,
    typer.Option(
        "--max-restarts",
        min=0,
        help="Start again so often without a new checkpoint in between.",
        rich_help_panel=_AGAIN,
    ),
]
MinNodes: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--min-nodes", min=1, help="Start with so many hosts too.", show_default="all", rich_help_panel=_AGAIN
    ),
]
MaxNodes: TypeAlias = Annotated[
    int | None,
    typer.Option("--max-nodes", min=1, help="Start with no more hosts.", show_default="all", rich_help_panel=_AGAIN),
]
Wait: TypeAlias = Annotated[
    float,
    typer.Option("--wait", min=1, help="Seconds to wait for hosts that do not answer.", rich_help_panel=_AGAIN),
]
