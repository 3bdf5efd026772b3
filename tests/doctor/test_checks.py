"""What `examine` says of machines that have one thing wrong each."""

from dataclasses import replace

import pytest

from jzero.doctor import Machine, examine

GB = 10**9
NODE = Machine(
    python="3.12.4",
    versions={"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.10.2", "jax-cuda12-pjrt": "0.10.2"},
    environment={"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.92", "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB": "900"},
    backend="gpu",
    devices=("NVIDIA H100 80GB HBM3",) * 8,
    driver="550.54.15",
    gpu_files=8,
    cpus=96,
    free_memory=1000 * GB,
    shared_memory=500 * GB,
    locked_memory=None,
    open_files=65536,
    interfaces={"eth0": 100_000},
    fabric={"mlx5_0/1": ("4: ACTIVE", "400 Gb/sec (4X NDR)")},
    addresses=None,
)
RANK = {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "0", "MASTER_PORT": "29500"}


def of_level(level: str, **changes) -> list[str]:
    environment = {**NODE.environment, **changes.pop("environment", {})}
    found = examine(replace(NODE, environment=environment, **changes))
    return [f"{f.topic}: {f.what}: {f.advice}" for f in found if f.level == level]


def test_nothing_is_wrong_with_a_good_node():
    assert {f.level for f in examine(NODE)} == {"fine"}
    facts = "; ".join(f.what for f in examine(NODE))
    for fact in ("8 of JAX's backend gpu: NVIDIA H100", "driver 550.54.15", "eth0, 100 Gb/s", "mlx5_0/1, 400 Gb/sec"):
        assert fact in facts


@pytest.mark.parametrize(
    ("changes", "topic", "words"),
    [
        ({"versions": {"jax": "0.10.2", "jaxlib": "0.10.1"}}, "versions", "pip install jax==0.10.2 jaxlib==0.10.2"),
        (
            {"versions": {"jax": "0.10.2", "jaxlib": "0.10.2", "jax-cuda12-plugin": "0.9.0"}},
            "versions",
            "pip install jax-cuda12-plugin==0.10.2",
        ),
        ({"driver": "515.1.2"}, "devices", "needs driver 525 or newer"),
        ({"backend": "cpu", "devices": ("cpu",)}, "devices", "pip install 'jax[cuda12]'"),
        (
            {"backend": "cpu", "devices": ("cpu",), "environment": {"JAX_PLATFORMS": "cpu"}},
            "devices",
            "JAX_PLATFORMS=cpu keeps JAX from them",
        ),
        ({"backend": "Unable to initialize backend 'cuda'", "devices": ()}, "devices", "JAX finds no device"),
        ({"shared_memory": 64 << 20}, "memory", "--shm-size=16g"),
        ({"environment": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5"}}, "memory", "reckons with 92%"),
        ({"environment": {"XLA_PYTHON_CLIENT_MEM_FRACTION": "most"}}, "memory", "between 0 and 1"),
        ({"environment": {"NCCL_P2P_DISABLE": "1"}}, "environment", "not over NVLink"),
        ({"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}, "environment", "waits for every kernel"),
        ({"environment": {"NCCL_IB_DISABLE": "1"}}, "network", "over TCP"),
        ({"locked_memory": 65536}, "network", "ulimit -l unlimited"),
        ({"environment": {"NCCL_SOCKET_IFNAME": "ib0"}}, "network", "those that are up: eth0"),
        ({"environment": {"NCCL_SOCKET_IFNAME": "^eth"}}, "network", "NCCL_SOCKET_IFNAME=^eth"),
        ({"environment": RANK}, "network", "set MASTER_ADDR and MASTER_PORT"),
        ({"environment": {**RANK, "MASTER_ADDR": "nowhere"}, "addresses": ()}, "network", "knows no such name"),
        ({"environment": {**RANK, "MASTER_ADDR": "here"}, "addresses": ("127.0.0.1",)}, "network", "the first one"),
    ],
)
def test_each_thing_that_is_wrong_is_named_alone_with_what_to_do(changes, topic, words):
    (line,) = of_level("wrong", **changes)
    assert line.startswith(f"{topic}: ")
    assert words in line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": {"CUDA_VISIBLE_DEVICES": "0,1"}, "devices": ("NVIDIA H100",) * 2}, "CUDA_VISIBLE_DEVICES=0,1"),
        ({"open_files": 1024}, "ulimit -n 4096"),
        ({"environment": {"NCCL_ALGO": "Ring"}}, "NCCL_ALGO=Ring"),
        ({"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}, "advises against"),
        ({"fabric": {"mlx5_0/1": ("4: ACTIVE", "400"), "mlx5_1/1": ("1: DOWN", "10")}}, "mlx5_1/1, 1: DOWN"),
        ({"environment": {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}}, "simulates CPU devices"),
        ({"versions": {"jax": "0.10.2", "jaxlib": "0.10.2"}}, "pip install 'jzero[plan]'"),
    ],
)
def test_what_may_be_meant_so_is_a_note(changes, words):
    assert not of_level("wrong", **changes)
    (line,) = of_level("note", **changes)
    assert words in line


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"NCCL_SOCKET_IFNAME": "eth"}},
        {"environment": {"NCCL_SOCKET_IFNAME": "=eth0,ib0"}},
        {"environment": {"NCCL_SOCKET_IFNAME": "^docker"}},
        {"environment": {"NCCL_P2P_DISABLE": "0", "NCCL_DEBUG": "WARN", "CUDA_DEVICE_MAX_CONNECTIONS": "8"}},
        {"environment": {**RANK, "MASTER_ADDR": "node1"}, "addresses": ("10.0.0.1",)},
        {"environment": {**RANK, "WORLD_SIZE": "8", "MASTER_ADDR": "here"}, "addresses": ("127.0.0.1",)},
        {"fabric": {}, "locked_memory": 65536, "environment": {"NCCL_IB_DISABLE": "1"}},
    ],
)
def test_what_is_right_raises_nothing(changes):
    assert not of_level("wrong", **changes) + of_level("note", **changes)


def test_a_laptop_is_not_told_of_gpu_variables():
    laptop = {"backend": "cpu", "devices": ("cpu",), "gpu_files": 0, "driver": None, "fabric": {}}
    assert not of_level("wrong", environment={"NCCL_P2P_DISABLE": "1"}, **laptop)
    assert of_level("wrong", environment={"JAX_DISABLE_JIT": "1"}, **laptop)
