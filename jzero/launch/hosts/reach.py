"""The command that starts an agent on a host: directly, by the system's `ssh`, or by `srun` within an allocation."""

import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jzero.launch.hosts.hostfile import LOCAL

Way = Literal["ssh", "srun"]

_AGENT = ("-m", "jzero.launch.agent")
_SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=30", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4")


@dataclass(frozen=True)
class Reach:
    """How hosts are reached.

    Attributes:
        way: of those that are not this one.
        ssh_port: of their ssh servers; None for what ssh itself finds.
    """

    way: Way = "ssh"
    ssh_port: int | None = None


def agent_command(host: str, reach: Reach, folder: str, environment: Mapping[str, str]) -> list[str]:
    """What starts an agent on a host.

    Args:
        host: its name.
        reach: how it is reached.
        folder: the working directory.
        environment: in which PYTHONPATH may say where jzero itself is.

    Example:
        >>> agent_command("node2", Reach("ssh", 2222), "/a b", {})[-3:-1]
        ['--', 'node2']
    """
    agent = [sys.executable, *_AGENT]
    if reach.way == "srun":  # also for this node: a signal of SLURM's then reaches the same processes on each
        alone = ("--nodes=1", "--ntasks=1", "--ntasks-per-node=1", f"--nodelist={host}", "--cpu-bind=none")
        return ["srun", "--overlap", *alone, "--unbuffered", "--kill-on-bad-exit=0", *agent, "--signals-reach-all"]
    if is_here(host):
        return agent
    path = environment.get("PYTHONPATH")
    words = [*(["env", f"PYTHONPATH={path}"] if path else []), *agent]
    # The user's shell on that host reads this line, whichever shell it is; all that is told otherwise goes by the pipe.
    line = f"cd {shlex.quote(folder)} && exec {shlex.join(words)}"
    port = ["-p", str(reach.ssh_port)] if reach.ssh_port is not None else []
    return ["ssh", *_SSH, *port, "--", host, line]


def is_here(host: str) -> bool:
    """Whether a name is this machine's own.

    Example:
        >>> is_here("localhost"), is_here("node17.example")
        (True, False)
    """
    own = socket.gethostname()
    return host in (LOCAL, "127.0.0.1", "::1", own, own.partition(".")[0])
