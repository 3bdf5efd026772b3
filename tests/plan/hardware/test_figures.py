"""What is known of GPUs: one file each, found by JAX's names too, and files of a user's own."""

import os
import re

import pytest

from jzero.errors import ConfigError
from jzero.plan import Cluster
from jzero.plan.compiled.topology import can_compile_for, gpu_mesh
from jzero.plan.hardware.figures import GPUS, Pace, gpu_figures, gpu_memory, is_known


@pytest.mark.parametrize("gpu", GPUS)
def test_every_file_holds_what_its_name_says(gpu):
    figures = gpu_figures(gpu)
    assert figures.name == gpu
    assert gpu_figures(figures.device_kind) is figures
    assert gpu.split("-")[0].upper() in figures.device_kind.upper().replace(" ", "")
    if size := re.search(r"-(\d+)g$", gpu):
        assert 0.98 < figures.memory / 2**30 / int(size[1]) <= 1
    assert figures.pcie_bandwidth <= figures.nvlink_bandwidth < figures.memory_bandwidth
    assert figures.network_bandwidth < figures.nvlink_bandwidth


def test_the_gpus_of_the_documentation():
    assert set(GPUS) == {"v100-32g", "a100-40g", "a100-80g", "h100-80g", "h200", "b200", "l40s", "rtx4090-24g"}
    # Dense bf16 products of the data sheets, in 10^12 per second.
    rates = {"a100-80g": 312, "h100-80g": 989.4, "h200": 989.4, "b200": 2250, "l40s": 362.05, "rtx4090-24g": 165.2}
    for gpu, rate in rates.items():
        figures = gpu_figures(gpu)
        assert figures.flops["bf16"] == figures.flops["f16"] == rate * 1e12
        assert figures.flops["f32"] == pytest.approx(rate * 1e12 / 2, rel=0.02)


@pytest.mark.parametrize("gpu", [gpu for gpu in GPUS if gpu != "v100-32g"])
def test_what_a_compiler_sees_is_the_same_gpu(gpu):
    device = gpu_mesh(gpu, n_gpus=1).devices.flat[0]
    assert device.device_kind == gpu_figures(gpu).device_kind


def test_a_gpu_that_xla_cannot_compile_for():
    assert not can_compile_for("v100-32g")
    assert can_compile_for("b200")
    with pytest.raises(ConfigError, match=r"XLA cannot compile for v100-32g, .* its plan is by the closed form"):
        gpu_mesh("v100-32g")


def test_shorter_names_of_real_devices():
    assert gpu_figures("NVIDIA H200").name == "h200"
    assert not is_known("cpu")
    assert not is_known("")


def test_unknown_devices():
    with pytest.raises(
        ConfigError, match=r"No GPU is named 'cpu'; known are a100-40g, .*, or give the path of a .toml"
    ):
        gpu_figures("cpu")


@pytest.fixture
def gpu_file(tmp_path):
    def write(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return str(path)

    return write


def test_a_file_of_ones_own_says_what_is_different(gpu_file):
    path = gpu_file('like = "h100-80g"\nmemory = 64_000_000_000\nnetwork = "25gb-eth"\nflops.bf16 = 5e14\n')
    mine, like = gpu_figures(path), gpu_figures("h100-80g")
    assert gpu_memory(path) == mine.memory == 64_000_000_000
    assert mine.flops == {**like.flops, "bf16": 5e14}
    assert (mine.memory_bandwidth, mine.target) == (like.memory_bandwidth, like.target)
    assert mine.network.name == "25gb-eth"
    cluster = Cluster(path, 16)
    assert (cluster.memory, cluster.network) == (64_000_000_000, "25gb-eth")
    assert gpu_mesh(path, 2).devices.flat[0].device_kind == like.device_kind


def test_a_file_may_stand_alone(gpu_file):
    path = gpu_file(
        'device_kind = "X"\nmemory = 8\nmemory_bandwidth = 1e12\nnvlink_bandwidth = 1e11\npcie_bandwidth = 1e10\n'
        'network = "100gb"\nflops = { f32 = 1e13 }\n'
    )
    assert gpu_figures(path).product_seconds({"bf16": 10**13}) == 1.0
    assert gpu_figures(path).target is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('like = "h1000"', r"mine.toml: `like` = 'h1000' is no known GPU; known are a100-40g"),
        ('like = "h200"\nmemory = -1', r"mine.toml: `memory`: input should be greater than 0"),
        ('like = "h200"\nmemroy = 1', r"mine.toml: `memroy`: unexpected keyword argument"),
        ('like = "h200"\ntarget.cores = 1.5', r"mine.toml: `target.cores`: input should be a valid integer"),
        ('like = "h200"\nnetwork = "fast"', r"No network is named 'fast'"),
        ("memory = 1", r"mine.toml: `device_kind`: field required"),
        ("memory = ", r"The GPU file .*mine.toml is not TOML: "),
        ("like = 5", r"mine.toml: `like` = 5 is no known GPU"),
        ('like = "h200"\nmemory.x = 1', r"mine.toml: `memory`: input should be a valid integer"),
        ("memory = " + "[" * 5000, r"The GPU file .*mine.toml is not TOML: "),
        ("memory = " + "9" * 5000, r"The GPU file .*mine.toml is not TOML: "),
        ("#" * 2**19, r"The GPU file .*mine.toml cannot be read: it is longer than the 262 kB that such a file"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_sentence(gpu_file, text, sentence):
    with pytest.raises(ConfigError, match=sentence) as caught:
        gpu_figures(gpu_file(text))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there():
    with pytest.raises(ConfigError, match=r"The GPU file nowhere.toml cannot be read: No such file"):
        Cluster("nowhere.toml", 8)


def test_what_is_no_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "mine.toml")
    with pytest.raises(ConfigError, match=r"The GPU file .*mine.toml cannot be read: it is a named pipe, not a file\."):
        gpu_figures(str(tmp_path / "mine.toml"))


def test_collectives_take_their_hops_and_the_slowest_link():
    gpu = Cluster("a100-80g", 32, network="100gb-roce").figures  # 4 nodes that have 12.5 GB/s each
    ring = 10e-6 + 28 * 2e-6 + 3 * 5e-6  # to start, 28 hops inside nodes and 3 between them
    assert gpu.collective_seconds("all-gather", 0, 32, 8) == pytest.approx(ring)
    assert gpu.collective_seconds("reduce-scatter", 12.5e9, 32, 8) == pytest.approx(ring + 1)
    tree = 10e-6 + 2 * (7 * 2e-6 + 2 * 5e-6)  # inside a node, and twice up and down the tree of 4 nodes
    assert gpu.collective_seconds("all-reduce", 12.5e9, 32, 8) == pytest.approx(tree + 1)
    assert gpu.collective_seconds("all-gather", 300e9, 8, 8) == pytest.approx(10e-6 + 7 * 2e-6 + 1)
    assert gpu.collective_seconds("collective-permute", 12.5e9, 32, 1) == pytest.approx(10e-6 + 5e-6 + 8)
    assert gpu.collective_seconds("all-gather", 1, 1, 1) == 0


def test_a_cluster_of_nodes_of_another_size_shares_its_network_among_those():
    assert Cluster("a100-80g", 32, 4, "100gb-roce").figures.network_bandwidth == 12.5e9 / 4
    assert Cluster("a100-80g", 32, 4).figures.network_bandwidth == 25e9  # a card for each


def test_a_pace_scales_every_rate():
    gpu, half = gpu_figures("h100-80g"), gpu_figures("h100-80g").at(Pace(0.5, 0.5, 0.5, 0.5, 2.0))
    assert half.product_seconds({"bf16": 10**15}) == 2 * gpu.product_seconds({"bf16": 10**15})
    for kind, per_node in (("all-gather", 8), ("all-reduce", 8), ("all-to-all", 1), ("all-gather", 64)):
        slow, fast = (g.collective_seconds(kind, 10**8, 64, per_node) for g in (half, gpu))
        assert slow == pytest.approx(2 * fast)
    assert (half.memory_bandwidth, half.pcie_bandwidth) == (gpu.memory_bandwidth / 2, gpu.pcie_bandwidth / 2)
