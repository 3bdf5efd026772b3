"""What a process reads from its environment; that processes do find each other is for tests/multiprocess."""

import signal

import jax
import pytest

from jzero.errors import ConfigError
from jzero.launch import Launch, initialize_from_environment, joining, read_launch
from jzero.launch.local_devices import local_device_ids
from jzero.launch.meeting import Neighbours

SECOND_OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
NOWHERE = {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
JAX = {**NOWHERE, "JAX_COORDINATOR_ADDRESS": "node1:29500"}


@pytest.fixture
def calls(monkeypatch):
    """Stands in for `jax.distributed.initialize` and for the other processes; the calls it gets."""
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **kwargs: calls.append((args, kwargs)))
    monkeypatch.setattr(joining, "meet", lambda coordinator, own, timeout: Neighbours(1, 0, True))
    monkeypatch.setattr("sys.excepthook", print)
    before = jax.config.jax_enable_preemption_service
    yield calls
    jax.config.update("jax_enable_preemption_service", before)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
        {**SECOND_OF_TWO, "RANK": "0", "WORLD_SIZE": "1"},
        {**SECOND_OF_TWO, "RANK": "0", "WORLD_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "1"},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_PROCID": "0"},  # a batch script, not a step of several tasks
        {"SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},
        {"JOB_COMPLETION_INDEX": "3", "JZERO_NUM_PROCESSES": "1"},
    ],
)
def test_one_process_is_left_alone(calls, environment):
    assert initialize_from_environment(environment) is False
    assert not calls


@pytest.mark.parametrize("variables", [SECOND_OF_TWO, JAX])
def test_jax_is_told_everything_and_detects_nothing(calls, variables):
    assert initialize_from_environment(variables) is True
    ((arguments, options),) = calls
    assert arguments == ("node1:29500", 2, 1)
    assert options == {"local_device_ids": None, "cluster_detection_method": "deactivate"}


def test_jax_leaves_sigterm_alone(calls):
    initialize_from_environment(SECOND_OF_TWO)
    assert jax.config.jax_enable_preemption_service is False
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize("local_size", ["LOCAL_SIZE", "LOCAL_WORLD_SIZE"])
def test_processes_that_share_a_machine_take_one_device_each(calls, local_size):
    initialize_from_environment({**SECOND_OF_TWO, "LOCAL_RANK": "1", local_size: "2"})
    initialize_from_environment({**SECOND_OF_TWO, "LOCAL_RANK": "0", local_size: "1"})
    assert [options["local_device_ids"] for _, options in calls] == [[1], None]


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        (JAX, "node1:29500"),
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "node1", "JAX_COORDINATOR_PORT": "7"}, "node1:7"),
        ({**NOWHERE, "JAX_COORDINATOR_IP": "fd00::1", "JAX_COORDINATOR_PORT": "7"}, "[fd00::1]:7"),
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "[fd00::1]:8"}, "[fd00::1]:8"),
        ({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}, "node1:29500"),
        ({"JZERO_NUM_PROCESSES": "2", "JZERO_RANK": "1", "JZERO_COORDINATOR": "node1:9", **SECOND_OF_TWO}, "node1:9"),
        ({"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "MASTER_ADDR": "n", "MASTER_PORT": "9"}, "n:9"),
    ],
)
def test_where_the_first_process_is(variables, place):
    launch = read_launch(variables)
    assert (launch.rank, launch.n_processes, launch.coordinator) == (1, 2, place)


@pytest.mark.parametrize(
    ("variables", "found", "n_gpus", "taken"),
    [
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, Neighbours(2, 1, True), 8, [2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, Neighbours(2, 1, False), 8, None),  # bound: the other one sees others
        ({"CUDA_VISIBLE_DEVICES": "GPU-1a,GPU-2b"}, Neighbours(2, 1, True), 8, [1]),
        ({"CUDA_VISIBLE_DEVICES": "5"}, Neighbours(8, 5, True), 8, None),
        ({"CUDA_VISIBLE_DEVICES": "0,1,-1,3"}, Neighbours(2, 0, True), 8, [0]),
        ({"CUDA_VISIBLE_DEVICES": ""}, Neighbours(2, 0, True), 8, None),
        ({}, Neighbours(4, 3, True), 8, [6, 7]),
        ({}, Neighbours(4, 3, True), 0, [3]),
        ({}, Neighbours(1, 0, True), 8, None),
        ({"JAX_LOCAL_DEVICE_IDS": "1,3"}, Neighbours(1, 0, True), 8, [1, 3]),
    ],
)
def test_processes_that_found_each_other_on_a_machine_divide_its_gpus(variables, found, n_gpus, taken):
    assert local_device_ids(Launch(1, 8, "node1:29500"), variables, found, n_gpus) == taken


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two'; it must be a whole number"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is 0; it must be the number of processes"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT is 'http'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536; a port is a number from 1 to 65535"),
        (
            {"MASTER_ADDR": None},
            "RANK=1 and WORLD_SIZE=2, but does not say where the first process is; set MAST",
        ),
        ({"RANK": "2"}, "RANK=2 and WORLD_SIZE=2; ranks count from 0"),
        ({"RANK": None}, "WORLD_SIZE=2, but no RANK: each process must know which of them it is"),
        ({"WORLD_SIZE": None}, "RANK=1, so this is one process of several, .* set WORLD_SIZE, MASTER_ADDR"),
        ({"LOCAL_SIZE": "2"}, "LOCAL_SIZE=2 processes on this machine, but no LOCAL_RANK"),
        ({"LOCAL_SIZE": "2", "LOCAL_RANK": "2"}, "LOCAL_RANK=2, of 2 on this machine; they count from 0"),
    ],
)
def test_what_does_not_fit_is_a_sentence(calls, change, message):
    environment = {name: value for name, value in (SECOND_OF_TWO | change).items() if value is not None}
    with pytest.raises(ConfigError, match=message):
        initialize_from_environment(environment)
    assert not calls


def test_what_only_one_process_finds_wrong_is_raised_once_the_others_can_hear_of_it(calls):
    with pytest.raises(ConfigError, match="JAX_LOCAL_DEVICE_IDS is 'a'; it must be numbers"):
        initialize_from_environment({**SECOND_OF_TWO, "JAX_LOCAL_DEVICE_IDS": "a"})
    assert len(calls) == 1


@pytest.mark.parametrize(
    "variables",
    [
        {"JOB_COMPLETION_INDEX": "3"},
        {"JAX_NUM_PROCESSES": "2"},
        {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0"},
        {"NNODES": "2", "NODE_RANK": "0"},
        {"PMI_SIZE": "2", "PMI_RANK": "1"},
        {"OMPI_COMM_WORLD_SIZE": "2"},
        {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "0"},
        {"PET_NNODES": "2", "PET_NODE_RANK": "0"},
    ],
)
def test_one_of_several_that_cannot_find_the_others_is_no_run_of_its_own(variables):
    with pytest.raises(ConfigError, match="The environment has "):
        read_launch(variables)
