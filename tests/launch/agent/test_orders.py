"""What an agent gives its processes, and what it finds on its node."""

import os

from jzero.launch.agent.machine import cpus_near
from jzero.launch.agent.orders import Orders, Process, variables_of
from jzero.launch.environment import read_launch
from jzero.launch.local_devices import local_device_ids
from jzero.launch.meeting import Neighbours

ORDERS = Orders(
    ("true",),
    "/",
    {"A": "1"},
    (Process(2, 0, (1,)), Process(3, 1, (3,))),
    4,
    "[fd00::1]:29500",
    2,
    "ab",
    node=1,
    n_nodes=2,
)


def test_a_process_is_read_by_the_table_of_launchers():
    own = variables_of(
        ORDERS, ORDERS.processes[1], None, {"B": "2", "SLURM_PROCID": "0", "RANK": "0", "WORLD_SIZE": "1"}
    )
    launch = read_launch(own)
    assert (launch.rank, launch.n_processes, launch.local_rank, launch.n_local) == (3, 4, 1, 2)
    assert (launch.coordinator, launch.host) == ("[fd00::1]:29500", "fd00::1")
    assert launch.start.endswith("JZERO_LAUNCH=ab JZERO_ATTEMPT=2")
    assert (own["A"], own["B"], own["RANK"], own["MASTER_ADDR"], own["MASTER_PORT"]) == (
        "1",
        "2",
        "3",
        "fd00::1",
        "29500",
    )


def test_all_processes_of_a_node_see_its_gpus_and_each_is_told_its_own():
    for visible, shown in (
        (None, "1,3"),
        (["4", "5", "6", "7"], "5,7"),
        (["GPU-a", "GPU-b", "GPU-c", "GPU-d"], "GPU-b,GPU-d"),
    ):
        own = variables_of(ORDERS, ORDERS.processes[1], visible, {})
        assert (own["CUDA_VISIBLE_DEVICES"], own["JAX_LOCAL_DEVICE_IDS"]) == (shown, "1")
        assert local_device_ids(read_launch(own), own, Neighbours(2, 1, True), 4) == [1]


def test_without_gpus_nothing_is_said_of_them():
    orders = Orders(("true",), "/", {}, (Process(0, 0),), 1, "a:1")
    own = variables_of(orders, orders.processes[0], None, {})
    assert not {"CUDA_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS"}.intersection(own)
    assert read_launch(own) is None


def test_the_cpus_near_a_gpu(tmp_path):
    here = sorted(os.sched_getaffinity(0))
    for bus, node, uuid in (("0000:1B:00.0", 0, "GPU-a"), ("0000:9A:00.0", 1, "GPU-b")):
        (tmp_path / "driver/nvidia/gpus" / bus.lower()).mkdir(parents=True)
        (tmp_path / "driver/nvidia/gpus" / bus.lower() / "information").write_text(f"Model: H\nGPU UUID:\t {uuid}\n")
        (tmp_path / "bus/pci/devices" / bus.lower()).mkdir(parents=True)
        (tmp_path / "bus/pci/devices" / bus.lower() / "numa_node").write_text(f"{node}\n")
        (tmp_path / f"devices/system/node/node{node}").mkdir(parents=True)
    (tmp_path / "devices/system/node/node0/cpulist").write_text(f"{here[0]}\n")
    (tmp_path / "devices/system/node/node1/cpulist").write_text("4096-4100\n")
    assert cpus_near(("0",), tmp_path, tmp_path) == cpus_near(("GPU-a",), tmp_path, tmp_path) == {here[0]}
    assert cpus_near(("1",), tmp_path, tmp_path) == set()  # none that this process may use
    assert cpus_near(("0", "5"), tmp_path, tmp_path) == set()
    assert cpus_near(("0",), tmp_path / "none", tmp_path) == set()
