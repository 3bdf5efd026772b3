"""Ctrl-C pressed twice, and while modules are imported, in processes of their own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TIMEOUT = 60

BUSY = """
import hashlib, signal, sys
from jzero.base.interruption import second_signal_ends
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)  # as that of a training loop, which only takes note
with second_signal_ends():
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # as in a compiler: no instruction of Python for an hour
"""


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("pause", [0.1, 0.5])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_process_that_is_in_a_compiled_program(pause, second):
    with start("-c", BUSY) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        time.sleep(pause)
        assert process.poll() is None  # the first one waits for the compiled program
        process.send_signal(second)
        out, err = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, out) == (128 + second, "")
    assert err == "Ended by a second signal.\n"


def test_the_first_one_does_what_its_handler_does_and_a_prompt_is_left_alone():
    code = """
import os, signal, sys
from jzero.base.interruption import second_signal_ends
sys.ps1 = ">>> "
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background would leave out
with second_signal_ends():
    for _ in range(3):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("again")
"""
    assert start("-c", code).communicate(timeout=TIMEOUT) == ("again\n" * 3, "")


def test_afterwards_signals_are_as_before():
    code = """
import os, signal
from jzero.base.interruption import second_signal_ends
signal.signal(signal.SIGINT, signal.default_int_handler)
before = signal.set_wakeup_fd(-1)
for _ in range(2):
    with second_signal_ends(), second_signal_ends():
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            print("once")
assert signal.set_wakeup_fd(-1) == before
"""
    assert start("-c", code).communicate(timeout=TIMEOUT) == ("once\n" * 2, "")


INTERRUPTING = """
import os, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["INTERRUPTED_IMPORT"]:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("module", ["typer", "rich.console", "jzero.cli.config", "jzero.config.config", "pydantic"])
def test_ctrl_c_while_the_program_is_imported_is_silent(module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTING)
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    process = start("-m", "jzero", "config", "configs/ds_stage3.json", PYTHONPATH=path, INTERRUPTED_IMPORT=module)
    out, err = process.communicate(timeout=TIMEOUT)
    assert (out, err) == ("", "")
    assert process.returncode in (-signal.SIGINT, 128 + signal.SIGINT)  # which a shell does not tell apart


def test_the_installed_program_is_that_module():
    assert 'jzero = "jzero.__main__:main"' in (ROOT / "pyproject.toml").read_text()
