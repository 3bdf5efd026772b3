"""The kinds of scripts and manifests that can be printed."""

from collections.abc import Callable

from jzero.launch.scripts.facts import Facts
from jzero.launch.scripts.kubernetes import jobset, trainjob
from jzero.launch.scripts.shell import mpirun, slurm

KINDS: dict[str, Callable[[Facts], str]] = {"slurm": slurm, "jobset": jobset, "trainjob": trainjob, "mpirun": mpirun}
"""What can be printed, by name."""
