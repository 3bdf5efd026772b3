"""Starts `jzero launch` in a process of its own, with stubs of `ssh` and `srun`, and waits, never for ever."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]

SSH = """#!/bin/sh
# ssh [OPTIONS] -- HOST COMMAND: what runs on the host runs here, in an environment of its own.
while [ "$1" != -- ]; do shift; done
host=$2
echo "$host $3" >>"$STUB/ssh.log"
if [ -e "$STUB/down-$host" ]; then echo "ssh: connect to host $host port 22: No route to host" >&2; exit 255; fi
echo "Welcome to $host!"
cd /
exec env -i HOME="$HOME" PATH="$PATH" sh -c "$3"
"""

SRUN = """#!/bin/sh
# srun OPTIONS COMMAND: the same for one node of an allocation.
echo "$*" >>"$STUB/srun.log"
while [ "${1#-}" != "$1" ]; do shift; done
exec "$@"
"""


class Launched:
    """A launcher under way; a context manager, so that neither it nor what it starts outlives the test.

    Args:
        folder: its working directory; `ssh` and `srun` are put there.
        arguments: what follows `jzero launch`.
        ssh: the stub.
        **variables: of its environment.
    """

    def __init__(self, folder: Path, *arguments: object, ssh: str = SSH, **variables: str):
        for name, text in (("ssh", ssh), ("srun", SRUN)):
            (folder / "bin").mkdir(exist_ok=True)
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
            "PYTHONPATH": str(ROOT),
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "STUB": str(folder),
            **variables,
        }
        self._out, self._err = folder / "launcher.out", folder / "launcher.err"
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jzero", "launch", *map(str, arguments)],
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait(self, timeout: float = 30) -> int:
        """Waits for its end; seconds, after which the test fails."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {timeout} s\n{self.out}\n{self.err}") from None

    @property
    def out(self) -> str:
        """What the processes have written, as the launcher shows it."""
        return self._out.read_text()

    @property
    def err(self) -> str:
        """What the launcher says itself."""
        return self._err.read_text()

    def __enter__(self) -> "Launched":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def launch(folder: Path, *arguments: object, timeout: float = 30, **variables: str) -> tuple[int, Launched]:
    """Runs a launcher to its end."""
    with Launched(folder, *arguments, **variables) as launched:
        return launched.wait(timeout), launched


def wait_until(condition, timeout: float = 30) -> None:
    """Waits until something holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"did not come true within {timeout} s"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has reaped does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def pids(file: Path, count: int) -> list[int]:
    """The numbers that so many processes have written to a file, once they have."""
    wait_until(lambda: file.exists() and len(file.read_text().split()) >= count)
    return [int(word) for word in file.read_text().split()]


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Sends a signal."""
    os.kill(pid, number)


def ranks(folder: Path) -> dict[int, int]:
    """The processes that a launcher's agents run, by rank; those on other hosts need `--export STUB`."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, KeyError, ValueError):
            lines = (process / "environ").read_bytes().decode().split("\0")
            own = dict(line.split("=", 1) for line in lines if "=" in line)
            agent = (process / "stat").read_text().rpartition(")")[2].split()[1]
            if own["STUB"] == str(folder) and b"jzero.launch.agent" in Path(f"/proc/{agent}/cmdline").read_bytes():
                found[int(own["JZERO_RANK"])] = int(process.name)
    return found
