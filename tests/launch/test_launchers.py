"""What launchers leave in the environment, in files beside this one: read right, or refused with a sentence.

A file says where it comes from: captured from the launcher itself where that can be installed, else from what document.
"""

import json
from pathlib import Path

import pytest

from jzero.errors import ConfigError
from jzero.launch import Launch, read_launch
from jzero.launch.local_devices import local_device_ids
from jzero.launch.meeting import Arrival, neighbours

FOLDER = Path(__file__).with_name("environments")
ALL = None  # of the GPUs that the process sees

# name: where the first process is; the GPUs that each process takes, of those it sees, on machines of eight.
READ: dict[str, tuple[str, list[list[int] | None]]] = {
    "slurm-one-a-node": ("gpu-a01", [ALL, ALL]),
    "slurm-four-a-node": ("gpu-a01", [[0], [1], [2], [3]] * 2),
    "slurm-bound": ("gpu-a01", [ALL] * 8),
    "slurm-bound-two": ("127.0.0.1", [ALL] * 2),
    "slurm-gpu-bind": ("127.0.0.1", [ALL] * 4),
    "slurm-cpu": ("gpu-a01", [ALL, ALL]),
    "slurm-second-step": ("gpu-a01", [ALL, ALL]),
    "open-mpi-4": ("127.0.0.1", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "open-mpi-4-two-hosts": ("192.0.2.2", [ALL, ALL]),
    "open-mpi-5": ("127.0.0.1", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "open-mpi-5-in-slurm": ("gpu-a01", [ALL, ALL]),
    "mpich": ("127.0.0.1", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "intel-mpi": ("10.0.0.4:29500", [[0, 1, 2, 3], [4, 5, 6, 7]] * 2),
    "pals": ("x3001c0s1b0n0", [[0, 1, 2, 3], [4, 5, 6, 7]] * 2),
    "torchrun": ("localhost", [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "deepspeed": ("127.0.0.1:29500", [[0], [1]]),
    "kubernetes-indexed-job-told": ("train-0.train:6002", [ALL, ALL]),
    "jobset-xpk": ("train-slice-job-0-0.train:6002", [ALL, ALL]),
    "kubeflow-trainer-jax": ("train-node-0-0.train:6666", [ALL, ALL]),
    "kubeflow-trainer-torch": ("train-node-0-0.train:29400", [ALL, ALL]),
    "skypilot": ("10.0.0.5", [ALL, ALL]),
}
REFUSED = {
    "slurm-uneven": "3 processes of this machine share 4 GPUs, which cannot be divided evenly",
    "open-mpi-5-two-hosts": "OMPI_COMM_WORLD_SIZE=2, but does not say where the first process is; pass the first host",
    "kubernetes-indexed-job": "JOB_COMPLETION_INDEX=0, so this is one process of several, but does not say enough",
}
ALONE = {"slurm-alone", "slurm-batch"}


def environments(name: str) -> list[dict[str, str]]:
    found = json.loads((FOLDER / f"{name}.json").read_text())
    assert found["source"]
    return [found["common"] | each for each in found["each"]]


def devices(launches: list[Launch], variables: list[dict[str, str]]) -> list[list[int] | None]:
    """What each process takes, once they have met; they share a machine as far as their launcher says so."""
    arrivals = [
        Arrival(launch.rank, launch.n_processes, launch.start, "host", 1, _machine(launch, each), _visible(each))
        for launch, each in zip(launches, variables, strict=True)
    ]
    return [
        local_device_ids(launch, each, neighbours(arrivals, own), 8)
        for launch, each, own in zip(launches, variables, arrivals, strict=True)
    ]


def _machine(launch: Launch, variables: dict[str, str]) -> str:
    return variables.get("SLURMD_NODENAME") or str(launch.rank // (launch.n_local or 1))


def _visible(variables: dict[str, str]) -> str | None:
    return variables.get("CUDA_VISIBLE_DEVICES")


def test_every_file_is_expected_to_be_something():
    assert {file.stem for file in FOLDER.iterdir()} == {*READ, *REFUSED, *ALONE}


@pytest.mark.parametrize("name", READ)
def test_a_launcher_is_read(name):
    variables = environments(name)
    launches = [read_launch(each) for each in variables]
    assert all(launches)
    assert [launch.rank for launch in launches] == list(range(len(variables)))
    assert {launch.n_processes for launch in launches} == {len(variables)}
    assert len({(launch.coordinator, launch.start) for launch in launches}) == 1
    host, taken = READ[name]
    assert launches[0].coordinator.startswith(host + ("" if ":" in host else ":"))
    assert 0 < int(launches[0].coordinator.rpartition(":")[2]) < 65536
    assert devices(launches, variables) == taken


@pytest.mark.parametrize("name", REFUSED)
def test_a_launcher_that_says_several_and_cannot_be_used_is_refused(name):
    variables = environments(name)
    with pytest.raises(ConfigError, match=REFUSED[name]):
        devices([read_launch(each) for each in variables], variables)


@pytest.mark.parametrize("name", sorted(ALONE))
def test_a_process_that_is_alone_is_left_alone(name):
    assert [read_launch(each) for each in environments(name)] == [None]


def test_every_process_of_uneven_tasks_knows_its_place():
    launches = [read_launch(each) for each in environments("slurm-uneven")]
    assert [(launch.rank, launch.n_local, launch.local_rank) for launch in launches] == [
        (0, 3, 0),
        (1, 3, 1),
        (2, 3, 2),
        (3, 1, 0),
        (4, 1, 0),
    ]


def test_two_steps_of_a_job_and_two_starts_of_it_meet_at_different_ports():
    (first, *_), (second, *_) = environments("slurm-one-a-node"), environments("slurm-second-step")
    starts = [first, second, first | {"SLURM_RESTART_COUNT": "1"}, first | {"SLURM_STEP_ID": "1"}]
    assert len({read_launch(each).coordinator for each in starts}) == 4


def test_torchruns_own_port_is_left_to_it():
    (first, _) = environments("torchrun")
    assert not read_launch(first).coordinator.endswith(first["MASTER_PORT"])
    again = first | {"TORCHELASTIC_RESTART_COUNT": "1"}
    assert read_launch(again).coordinator != read_launch(first).coordinator
    del first["TORCHELASTIC_USE_AGENT_STORE"]
    assert read_launch(first).coordinator == f"localhost:{first['MASTER_PORT']}"
