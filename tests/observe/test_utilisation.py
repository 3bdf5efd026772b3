"""MFU from a clock of the test's own, by the peak of the device's kind or not at all."""

import pytest

from jzero.observe.utilisation import Speed, peak_flops, speed


def test_mfu_is_model_flops_a_second_by_the_peak_of_all_devices():
    peak = peak_flops("NVIDIA H100 80GB HBM3", "bf16")
    assert peak == 989.4e12
    found = speed(64 * int(989.4e12), seconds=2.0, n_devices=64, peak=peak)
    assert found == Speed(tflops_per_device=pytest.approx(494.7), mfu=pytest.approx(0.5))


def test_the_peak_is_that_of_the_precision():
    assert peak_flops("Tesla V100-SXM2-32GB", "fp16") == 125e12
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp32") == 156e12  # TF32


def test_an_unknown_device_has_no_mfu():
    assert peak_flops("NVIDIA H100 NVL", "bf16") is None
    assert speed(10**12, 1.0, 1, peak_flops("cpu", "bf16")) == (1.0, None)
