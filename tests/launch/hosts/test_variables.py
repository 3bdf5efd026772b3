"""Which variables other hosts are given."""

import pytest

from jzero.errors import ConfigError
from jzero.launch.hosts.variables import exported, files_of_variables


def test_what_belongs_to_one_host_or_process_stays():
    here = {
        "NCCL_DEBUG": "INFO",
        "PYTHONPATH": "/src",
        "CUDA_VISIBLE_DEVICES": "3",
        "JAX_PROCESS_ID": "1",
        "JAX_COORDINATOR_ADDRESS": "a:1",
        "JAX_ENABLE_X64": "1",
        "AWS_SECRET_ACCESS_KEY": "s",
    }
    assert exported(here) == {"NCCL_DEBUG": "INFO", "PYTHONPATH": "/src", "JAX_ENABLE_X64": "1"}
    assert exported(here, ["AWS_SECRET_ACCESS_KEY"])["AWS_SECRET_ACCESS_KEY"] == "s"


def test_files_of_variables(tmp_path):
    home, folder = tmp_path / "home", tmp_path / "work"
    for place in (home, folder):
        place.mkdir()
    (home / ".deepspeed_env").write_text("# for all\nA=1\nB=x=y z\n\nexport C='q r'\n")
    assert files_of_variables({}, home, folder) == [home / ".deepspeed_env"]
    (folder / ".deepspeed_env").write_text("A=2\n")
    files = files_of_variables({}, home, folder)
    assert exported({}, ["C=3"], files) == {"A": "2", "B": "x=y z", "C": "3"}
    (folder / "other").write_text("A=4\n")
    assert exported({}, (), files_of_variables({"DS_ENV_FILE": "other"}, home, folder)) == {"A": "4"}
    assert files_of_variables({"DS_ENV_FILE": str(folder / "other")}, home, folder) == [folder / "other"]


def test_what_is_wrong_is_named(tmp_path):
    file = tmp_path / ".deepspeed_env"
    file.write_text("A=1\nB\n")
    with pytest.raises(ConfigError, match=r"\.deepspeed_env, line 2: 'B' must be NAME=VALUE"):
        exported({}, (), [file])
    file.write_text("A;reboot=1\n")
    with pytest.raises(ConfigError, match="line 1: 'A;reboot' cannot be a variable's name"):
        exported({}, (), [file])
    with pytest.raises(ConfigError, match="--export NO: there is no such variable here"):
        exported({}, ["NO"])
    with pytest.raises(ConfigError, match="DS_ENV_FILE is none, and no such file"):
        files_of_variables({"DS_ENV_FILE": "none"}, tmp_path, tmp_path)


def test_a_value_that_no_variable_can_have_is_refused(tmp_path):
    (tmp_path / "env").write_text("A=1\nB=x\0y\n")
    with pytest.raises(ConfigError, match="line 2: the value of B has a NUL"):
        exported({}, (), [tmp_path / "env"])
