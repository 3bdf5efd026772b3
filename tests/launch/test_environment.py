"""What a process reads from its environment; that processes do find each other is for tests/multiprocess."""

import jax
import pytest

from jzero.errors import ConfigError
from jzero.launch import environment, initialize_from_environment

SECOND_OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}


@pytest.fixture
def calls(monkeypatch):
    """Stands in for `jax.distributed.initialize`; the calls it gets."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **kwargs: calls.append((args, kwargs)))
    monkeypatch.setattr("sys.excepthook", print)
    return calls


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        {**SECOND_OF_TWO, "RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"},  # a batch script, not a step of several tasks
        {"SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_one_process_is_left_alone(calls, environment):
    assert initialize_from_environment(environment) is False
    assert not calls


def test_the_variables_of_deepspeed_and_torchrun_are_read(calls):
    assert initialize_from_environment(SECOND_OF_TWO) is True
    (arguments, options), *_ = calls
    assert arguments == ("node1:29500", 2, 1)
    assert options["local_device_ids"] is None


@pytest.mark.parametrize("local_size", ["LOCAL_SIZE", "LOCAL_WORLD_SIZE"])
def test_processes_that_share_a_machine_take_one_device_each(calls, local_size):
    initialize_from_environment({**SECOND_OF_TWO, "LOCAL_RANK": "1", local_size: "2"})
    initialize_from_environment({**SECOND_OF_TWO, "LOCAL_RANK": "0", local_size: "1"})
    assert [options["local_device_ids"] for _, options in calls] == [1, None]


def test_a_process_that_waits_for_long_says_for_what(calls, monkeypatch, capsys):
    class Impatient(environment.threading.Thread):
        """A timer that does not wait."""

        def __init__(self, seconds, say):
            super().__init__(target=say)

        def cancel(self):
            self.join()

    monkeypatch.setattr(environment.threading, "Timer", Impatient)
    initialize_from_environment(SECOND_OF_TWO)
    assert capsys.readouterr().err == (
        "Still waiting for 2 processes in all at node1:29500; each of them must be started, with the same WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT, and a RANK of its own (here 1).\n"
    )


@pytest.mark.parametrize("name", ["SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"])
def test_jax_reads_the_variables_of_job_managers(calls, name):
    assert initialize_from_environment({name: "2"}) is True
    assert calls == [((), {})]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; it must be a whole number"),
        ({"MASTER_PORT": None}, "MASTER_PORT is None"),
        ({"MASTER_ADDR": None}, "RANK=1 and WORLD_SIZE=2, but no MASTER_ADDR"),
        ({"RANK": "2"}, "RANK=2 and WORLD_SIZE=2; ranks count from 0"),
        ({"LOCAL_SIZE": "2"}, "LOCAL_RANK is None"),
    ],
)
def test_what_does_not_fit_is_a_sentence(calls, change, message):
    environment = {name: value for name, value in (SECOND_OF_TWO | change).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        initialize_from_environment(environment)
    assert not calls
