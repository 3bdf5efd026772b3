"""What a printed script is told."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from jzero.errors import ConfigError

GRACE_SECONDS = 300
"""Between SIGTERM and SIGKILL: enough for a step and a save."""

PORT = 6002
"""Of the first process, in pods, which have an address each."""


@dataclass(frozen=True)
class Facts:
    """A job, for a cluster's own means.

    Attributes:
        command: what each process runs.
        nodes: how many machines or pods.
        gpus: of each.
        hosts: their names, where they are known.
        folder: the working directory; empty for the image's own.
        variables: of the environment.
        name: of the job.
        image: of the containers.
        max_restarts: how often it is started again.
        port: of the first process; None for the usual one.
    """

    command: tuple[str, ...]
    nodes: int = 1
    gpus: int = 8
    hosts: tuple[str, ...] = ()
    folder: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    name: str = "jzero"
    image: str | None = None
    max_restarts: int = 3
    port: int | None = None

    def __post_init__(self) -> None:
        """Refuses what no cluster takes.

        Raises:
            ConfigError: the name cannot be a job's.
        """
        if not re.fullmatch(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?", self.name):
            raise ConfigError(
                f"--job-name {self.name!r}: a job's name begins with a letter and has up to 40 small letters, digits "
                "and dashes."
            )

    @property
    def resumed(self) -> tuple[str, ...]:
        """The command for a cluster that starts it again and again: `jzero train` then goes on where it was."""
        trains = self.command[:2] == ("jzero", "train")
        fixed = any(word.partition("=")[0] in ("--resume", "--overwrite") for word in self.command)
        return (*self.command, "--resume", "auto") if trains and not fixed else self.command
