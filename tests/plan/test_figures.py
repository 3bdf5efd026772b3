"""Figures of GPUs: one set for each description, found by JAX's names too."""

import pytest

from jzero.errors import ConfigError
from jzero.plan.figures import gpu_figures, is_known
from jzero.plan.topology import GPUS, gpu_mesh


@pytest.mark.parametrize("gpu", GPUS)
def test_every_described_gpu_has_figures(gpu):
    figures = gpu_figures(gpu)
    assert figures.name == gpu
    assert gpu_mesh(gpu, n_gpus=1).devices.flat[0].device_kind == figures.device_kind
    assert gpu_figures(figures.device_kind) is figures
    assert figures.flops["bf16"] == figures.flops["f16"] == 2 * figures.flops["f32"]
    assert figures.network_bandwidth < figures.nvlink_bandwidth < figures.memory_bandwidth


def test_shorter_names_of_real_devices():
    assert gpu_figures("NVIDIA H200").name == "h200"
    assert not is_known("cpu")
    assert not is_known("")


def test_unknown_devices():
    with pytest.raises(
        ConfigError, match=r"No figures are known of a device named 'cpu'; known are a100-40g, a100-80g"
    ):
        gpu_figures("cpu")
