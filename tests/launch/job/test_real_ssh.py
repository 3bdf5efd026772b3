"""The system's own ssh and a real sshd: the agent comes up there, and ends with the connection."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.launched import Launched, alive, launch, pids, wait_until

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not (Path(SSHD).exists() and shutil.which("ssh-keygen")), reason="needs sshd"),
    pytest.mark.skipif(os.getuid() != 0, reason="sshd needs root"),
]


@pytest.fixture
def served(tmp_path):
    """A folder with a hostfile and an `ssh` that knows the key of a server that runs; and that server's port."""
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    Path("/run/sshd").mkdir(exist_ok=True)
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        f"StrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile {tmp_path}/sshd.pid\n"
    )
    (tmp_path / "hosts").write_text("node-a slots=2\n")
    server = subprocess.Popen([SSHD, "-D", "-e", "-f", tmp_path / "sshd_config"], stderr=subprocess.DEVNULL)
    config = f"Host node-*\n  HostName 127.0.0.1\n  User root\n  IdentityFile {tmp_path}/user\n"
    (tmp_path / "ssh_config").write_text(f"{config}  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n")
    stub = f'#!/bin/sh\nexec /usr/bin/ssh -F {tmp_path}/ssh_config -o LogLevel=ERROR "$@"\n'
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    yield tmp_path, port, stub
    server.terminate()
    server.wait()


def test_it_runs_there_as_it_does_here(served):
    folder, port, stub = served
    show = 'echo "$JZERO_RANK of $JZERO_NUM_PROCESSES in $PWD, $A"'
    options = ("--hostfile", "hosts", "--ssh-port", port, "--export", "A=it's $HOME")
    status, ended = launch(folder, *options, "sh", "-c", show, ssh=stub)
    assert status == 0, ended.err
    assert sorted(ended.out.splitlines()) == [f"[{rank}] {rank} of 2 in {folder}, it's $HOME" for rank in (0, 1)]


def test_nothing_runs_on_there_when_the_connection_goes(served):
    folder, port, stub = served
    script = f"sleep 601 & echo $! >>{folder}/pids; echo $$ >>{folder}/pids; wait"
    with Launched(folder, "--hostfile", "hosts", "--ssh-port", port, "sh", "-c", script, ssh=stub) as launched:
        started = pids(folder / "pids", 4)
        children = Path(f"/proc/{launched.process.pid}/task/{launched.process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)  # ssh itself
        assert launched.wait(15) == 75
        wait_until(lambda: not any(map(alive, started)), 10)
    assert "node-a is lost with processes 0, 1: its agent is gone, ssh ended with status -9" in launched.err


def test_a_refused_connection_is_told_in_ssh_s_own_words(served):
    folder, _, stub = served
    status, ended = launch(folder, "--hostfile", "hosts", "--ssh-port", 1, "true", ssh=stub)
    assert status == 75
    assert "node-a cannot be reached: ssh ended with status 255: ssh: connect to host 127.0.0.1 port 1:" in ended.err
