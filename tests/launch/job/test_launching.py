"""Processes that are started, watched and ended together, on one machine and on two that are stood in for."""

import os
import shlex
import signal
import sys

import pytest

from tests.launch.launched import Launched, alive, kill, launch, pids, wait_until

HOSTS = "127.0.0.2 slots=2\n127.0.0.3 slots=1\n"
SHOW = "echo $JZERO_RANK/$JZERO_NUM_PROCESSES $JZERO_LOCAL_RANK/$JZERO_LOCAL_SIZE $CROSS_RANK $A; echo oops >&2"
LEAVE_PID = 'echo $$ >>"$STUB/pids"'


@pytest.fixture
def hosts(tmp_path):
    (tmp_path / "hosts").write_text(HOSTS)
    return tmp_path


def test_processes_know_each_other_and_their_output_is_kept(tmp_path):
    status, ended = launch(tmp_path, "--procs-per-node", 2, "--export", "A=x y", "sh", "-c", SHOW)
    assert status == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["[0] 0/2 0/2 0 x y", "[0] oops", "[1] 1/2 1/2 0 x y", "[1] oops"]
    log = (tmp_path / "logs/rank-00001.log").read_text().splitlines()
    assert log[0].endswith("attempt 1 ---")
    assert log[1:] == ["1/2 1/2 0 x y", "oops"]


def test_hosts_are_reached_by_ssh_with_the_variables_that_were_named(hosts):
    (hosts / ".deepspeed_env").write_text("A='of a file'\n")
    status, ended = launch(hosts, "--hostfile", "hosts", "sh", "-c", f"{SHOW}; echo $SECRET", SECRET="s", UCX_TLS="tcp")
    assert status == 0, ended.err
    shown = [line for line in ended.out.splitlines() if line[4:] not in ("oops", "")]
    assert sorted(shown) == ["[0] 0/3 0/2 0 of a file", "[1] 1/3 1/2 0 of a file", "[2] 2/3 0/1 1 of a file"]
    assert "127.0.0.2: Welcome to 127.0.0.2!" in ended.err
    assert [line.split()[0] for line in (hosts / "ssh.log").read_text().splitlines()] == ["127.0.0.2", "127.0.0.3"]
    assert "of a file" not in (hosts / "ssh.log").read_text()


def test_nothing_reaches_a_shell_unquoted(tmp_path):
    folder = tmp_path / "a b'$(touch hit);`touch hit`"
    folder.mkdir()
    (folder / "hosts").write_text(HOSTS)
    words = ["; touch hit", "$(touch hit)", "'", '"', "a\nb"]
    script = "import os, sys; print(repr((os.getcwd(), sys.argv[1:], os.environ['X'])))"
    status, ended = launch(
        folder, "-H", "hosts", "-i", "127.0.0.3", "--export", "X=$(touch hit)", sys.executable, "-c", script, *words
    )
    assert status == 0, ended.err
    assert ended.out == f"[0] {(str(folder), words, '$(touch hit)')!r}\n"
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name == "hit"]


def test_within_an_allocation_srun_reaches_every_node(tmp_path):
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[08-09]", "SLURM_NTASKS": "2"}
    status, ended = launch(tmp_path, "sh", "-c", "echo $JZERO_RANK of $JZERO_NUM_PROCESSES", **slurm)
    assert status == 0, ended.err
    assert sorted(ended.out.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]
    assert [line.split()[4] for line in (tmp_path / "srun.log").read_text().splitlines()] == [
        "--nodelist=gpu08",
        "--nodelist=gpu09",
    ]


def test_the_first_failure_is_reported_and_the_rest_are_ended(hosts):
    all_there = 'until [ $(wc -l <"$STUB/pids") = 3 ]; do sleep 0.02; done'
    script = f"{LEAVE_PID}; if [ $RANK = 2 ]; then {all_there}; echo almost; kill -9 $$; fi; exec sleep 600"
    status, ended = launch(hosts, "--hostfile", "hosts", "--export", "STUB", "sh", "-c", script, timeout=10)
    assert status == 128 + signal.SIGKILL
    assert "Process 2 (on 127.0.0.3, pid " in ended.err
    assert ") was ended by SIGKILL. Its last lines:\n    almost\nAll output is in logs" in ended.err
    assert not any(alive(pid) for pid in pids(hosts / "pids", 3))


def test_one_that_does_not_heed_sigterm_is_killed(tmp_path):
    script = f"{LEAVE_PID}; if [ $RANK = 1 ]; then sleep 0.3; exit 3; fi; trap '' TERM; sleep 600"
    status, ended = launch(tmp_path, "--procs-per-node", 2, "--grace", 0.5, "sh", "-c", script, timeout=10)
    assert status == 3
    assert "Process 1 (on localhost, pid " in ended.err
    assert "ended with status 3." in ended.err
    assert not any(alive(pid) for pid in pids(tmp_path / "pids", 2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_arrives_once_in_each_process(tmp_path, number):
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo got; n=1' {name}; echo $$ >>$STUB/pids; while [ -z \"$n\" ]; do sleep 0.05; done; sleep 0.5"
    with Launched(tmp_path, "--procs-per-node", 2, "sh", "-c", f"{script}; exit {128 + number}") as launched:
        pids(tmp_path / "pids", 2)
        kill(launched.process.pid, number)
        assert launched.wait() == 128 + number, launched.err
    got = [line for line in launched.out.splitlines() if "Terminated" not in line]  # which the shell says of its sleep
    assert sorted(got) == ["[0] got", "[1] got"]
    assert "failed" not in launched.err


def test_nothing_runs_on_when_the_launcher_is_killed(hosts):
    script = f"sleep 601 & echo $! >>$STUB/pids; {LEAVE_PID}; wait"
    with Launched(hosts, "--hostfile", "hosts", "--export", "STUB", "sh", "-c", script) as launched:
        started = pids(hosts / "pids", 6)
        assert all(map(alive, started))
        launched.process.kill()
        wait_until(lambda: not any(map(alive, started)), 10)


def test_nothing_runs_on_when_an_agent_is_killed(tmp_path):
    script = f'{LEAVE_PID}; echo $PPID >>"$STUB/agents"; exec sleep 602'
    with Launched(tmp_path, "--procs-per-node", 2, "sh", "-c", script) as launched:
        started = pids(tmp_path / "pids", 2)
        kill(pids(tmp_path / "agents", 2)[0])
        assert launched.wait(10) == 75
    assert "localhost is lost with processes 0, 1: its agent is gone" in launched.err
    wait_until(lambda: not any(map(alive, started)), 5)


def test_what_a_process_leaves_behind_ends_with_it(tmp_path):
    status, _ = launch(tmp_path, "sh", "-c", 'sleep 603 & echo $! >"$STUB/pids"')
    assert status == 0
    wait_until(lambda: not alive(pids(tmp_path / "pids", 1)[0]), 5)


def test_a_host_that_cannot_be_reached_is_named(hosts):
    (hosts / "down-127.0.0.3").touch()
    status, ended = launch(hosts, "--hostfile", "hosts", "true", timeout=15)
    assert status == 75
    says = "127.0.0.3 cannot be reached: ssh ended with status 255: ssh: connect to host 127.0.0.3 port 22: No route"
    assert says in ended.err
    assert "error: 1 of 2 hosts have answered, and 2 are needed; missing: 127.0.0.3." in ended.err
    status, ended = launch(hosts, "--hostfile", "hosts", "--min-nodes", 1, "sh", "-c", "echo $JZERO_NUM_PROCESSES")
    assert status == 0, ended.err
    assert ended.out == "[0] 2\n[1] 2\n"


def test_a_command_that_is_not_there_is_named_and_not_started_again(tmp_path):
    status, ended = launch(tmp_path, "--max-restarts", 3, "no-such-program")
    assert status == 127
    assert f"cannot start no-such-program in {tmp_path}: No such file or directory" in ended.err
    assert "Not started again: there is nothing to start." in ended.err


def test_it_is_started_again_as_often_as_it_may(tmp_path):
    count = 'echo $JZERO_ATTEMPT; [ "$JZERO_ATTEMPT" = 3 ] || exit 75'
    status, ended = launch(tmp_path, "--max-restarts", 2, "sh", "-c", count)
    assert status == 0, ended.err
    assert ended.out == "[0] 1\n[0] 2\n[0] 3\n"
    assert "Starting again, attempt 3: restart 2 of at most 2 without a new checkpoint." in ended.err
    assert (tmp_path / "logs/rank-00000.log").read_text().count("attempt") == 3
    status, ended = launch(tmp_path, "--max-restarts", 1, "sh", "-c", count)
    assert status == 75
    assert "Not started again: it was started again 1 times without a new checkpoint" in ended.err


def test_a_mistake_is_not_tried_again(tmp_path):
    status, ended = launch(tmp_path, "--max-restarts", 3, "sh", "-c", "echo 'error: no'; exit 2")
    assert (status, ended.out) == (2, "[0] error: no\n")
    assert "Not started again: starting again does not help" in ended.err


def test_lost_and_returned_hosts_make_another_world(hosts):
    lost, seen = (shlex.quote(str(hosts / name)) for name in ("down-127.0.0.3", "seen"))
    (hosts / "seen").mkdir()
    script = f"""
        echo of $JZERO_NUM_PROCESSES
        touch {seen}/$JZERO_ATTEMPT-$RANK
        all() {{ until [ $(ls {seen} | grep -c ^$JZERO_ATTEMPT-) = $JZERO_NUM_PROCESSES ]; do sleep 0.05; done; }}
        case $JZERO_ATTEMPT-$RANK in
            1-0) all; touch {lost}; exit 9;;
            2-0) all; rm {lost}; exit 9;;
            3-*) exit 0;;
        esac
        exec sleep 600
    """
    options = ("--hostfile", "hosts", "--min-nodes", 1, "--max-restarts", 5)
    status, ended = launch(hosts, *options, "sh", "-c", script)
    assert status == 0, ended.err
    assert [line[4:] for line in ended.out.splitlines()] == ["of 3"] * 3 + ["of 2"] * 2 + ["of 3"] * 3
    assert "The world is 2 processes on 1 hosts now; it was 3." in ended.err
    assert "The world is 3 processes on 2 hosts now; it was 2." in ended.err


def test_one_of_several_launchers_is_refused(tmp_path):
    status, ended = launch(tmp_path, "true", RANK="1", WORLD_SIZE="2", MASTER_ADDR="a", MASTER_PORT="1")
    assert status == 2
    assert "error: jzero launch was started as process 1 of 2 by DeepSpeed or torchrun" in ended.err


def test_an_agent_of_another_version_is_refused(hosts):
    ssh = """#!/bin/sh\nprintf '\\036{"event": "hello", "version": "9"}\\n'; cat"""
    status, ended = launch(hosts, "--hostfile", "hosts", "true", ssh=ssh)
    assert status == 2
    assert "error: 127.0.0.2 has jzero 9, and the launcher is " in ended.err


def test_it_needs_no_jax(tmp_path):
    script = "import sys; from jzero.cli.launch import launch_command; print('jax' in sys.modules)"
    status, ended = launch(tmp_path, sys.executable, "-c", script)
    assert (status, ended.out) == (0, "[0] False\n"), ended.err


def test_very_long_lines_and_orders_arrive(tmp_path):
    script = "import sys; sys.stdout.buffer.write((b'\\xff' * 65536 + b'\\n') * 20); sys.exit(len(sys.argv))"
    status, ended = launch(tmp_path, sys.executable, "-c", script, *["a" * 100_000] * 4, timeout=15)
    assert status == 5
    assert len(ended.err) < 100_000
    assert (tmp_path / "logs/rank-00000.log").stat().st_size > 20 * 65536


def test_one_that_never_stops_writing_hears_a_signal(tmp_path):
    with Launched(tmp_path, "--logs", "", "sh", "-c", f"{LEAVE_PID}; exec yes") as launched:
        started = pids(tmp_path / "pids", 1)
        kill(launched.process.pid, signal.SIGTERM)
        assert launched.wait(15) == 143
    assert not alive(started[0])


def test_output_that_cannot_be_shown_ends_nothing(tmp_path):
    script = "printf 'a\\303\\244\\n'; exit 3"
    status, ended = launch(tmp_path, "sh", "-c", script, PYTHONIOENCODING="ascii")
    assert (status, ended.out) == (3, "[0] a\\xe4\n")
    outer = f'"{sys.executable}" -m jzero launch sh -c "echo a; echo b; exit 4" >/dev/full'
    status, ended = launch(tmp_path, "sh", "-c", outer)
    assert status == 4
    assert "The output cannot be shown any more: No space left on device; it is in logs on each host." in ended.out
    assert "Traceback" not in ended.out
