"""What starts an agent on a host, word for word."""

import shlex
import sys

from jzero.launch.hosts.reach import Reach, agent_command

AGENT = [sys.executable, "-m", "jzero.launch.agent"]


def test_this_machine_needs_nothing():
    assert agent_command("localhost", Reach(), "/w", {}) == AGENT


def test_ssh_gets_one_line_for_the_shell_there():
    command = agent_command("me@node2", Reach("ssh", 2222), "/a 'b'", {"PYTHONPATH": "/x;y"})
    assert command[0] == "ssh"
    assert command[-5:-1] == ["-p", "2222", "--", "me@node2"]
    assert shlex.split(command[-1]) == ["cd", "/a 'b'", "&&", "exec", "env", "PYTHONPATH=/x;y", *AGENT]


def test_srun_starts_one_agent_on_a_node():
    command = agent_command("gpu01", Reach("srun"), "/w", {})
    assert command[0] == "srun"
    assert {"--overlap", "--nodes=1", "--ntasks=1", "--nodelist=gpu01", "--cpu-bind=none"} <= set(command)
    assert command[-4:] == [*AGENT, "--signals-reach-all"]
