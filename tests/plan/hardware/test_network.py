"""Names of networks: what they mean for each GPU, and the sentence for names that mean nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.errors import ConfigError
from jzero.plan.hardware.network import read_network


@pytest.mark.parametrize(
    ("name", "per_gpu_of_8"),
    [
        ("400gb-ib", 50e9),
        ("100gb-roce", 12.5e9 / 8),
        ("3200gb-efa", 50e9),
        ("25gb-eth", 3.125e9 / 8),
        ("100gb", 12.5e9 / 8),
        ("100gb/gpu", 12.5e9),
        ("400gb-ib/node", 50e9 / 8),
        (" 400GB-IB ", 50e9),
    ],
)
def test_what_each_gpu_gets(name, per_gpu_of_8):
    assert read_network(name).per_gpu(8) == per_gpu_of_8


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 10_000), st.sampled_from(("-ib", "-roce", "-efa", "-eth", "")), st.integers(1, 16))
def test_a_node_shares_what_it_has(gigabits, kind, gpus):
    shared, own = read_network(f"{gigabits}gb{kind}/node"), read_network(f"{gigabits}gb{kind}/gpu")
    assert own.per_gpu(gpus) == gigabits * 1e9 / 8 == pytest.approx(gpus * shared.per_gpu(gpus))
    assert read_network(shared.name) == shared


def test_latency_grows_with_the_software_in_the_way():
    latencies = [read_network(f"100gb-{kind}").latency for kind in ("ib", "roce", "efa", "eth")]
    assert latencies == sorted(set(latencies))


@pytest.mark.parametrize("name", ["infiniband", "400", "0gb", "400gb-tcp", "400gb-ib/rack", ""])
def test_other_names_are_refused_with_examples(name):
    with pytest.raises(ConfigError, match=rf"No network is named '{name}': give gigabits .* such as 400gb-ib"):
        read_network(name)
