"""Mesh shapes, device order and the sentences of their errors."""

import subprocess
import sys
from typing import NamedTuple

import jax
import pytest
from jax.sharding import AxisType

from jzero.config import Config
from jzero.errors import ConfigError, JzeroError
from jzero.sharding.mesh import (
    AXES,
    DATA_AXES,
    devices_per_node,
    make_mesh,
    mesh_for,
    n_data_shards,
    n_groups,
    simulate_devices,
)
from tests import helpers


@pytest.mark.parametrize(
    ("n_devices", "replica", "tensor", "shape"),
    [
        (8, 1, 1, (1, 8, 1)),
        (8, 2, 1, (2, 4, 1)),
        (8, 2, 2, (2, 2, 2)),
        (6, 3, 1, (3, 2, 1)),
        (3, 1, 1, (1, 3, 1)),
        (1, 1, 1, (1, 1, 1)),
    ],
)
def test_shape_follows_from_the_number_of_devices(n_devices, replica, tensor, shape):
    mesh = make_mesh(jax.devices()[:n_devices], replica=replica, tensor=tensor)
    assert mesh.axis_names == AXES
    assert mesh.devices.shape == shape
    assert mesh.axis_types == (AxisType.Auto,) * 3
    assert n_data_shards(mesh) == shape[0] * shape[1]


def test_all_devices_by_default_and_neighbours_share_the_inner_axes():
    mesh = make_mesh(replica=2, tensor=2)
    assert [[d.id for d in row.flat] for row in mesh.devices] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [d.id for d in mesh.devices[0, 0]] == [0, 1]
    assert AXES[:2] == DATA_AXES


def test_indivisible_number_of_devices():
    with pytest.raises(ConfigError, match=r"8 devices .* replica=3 and tensor=1: .* multiple of replica \* tensor = 3"):
        make_mesh(replica=3)


@pytest.mark.parametrize("sizes", [{"replica": 0}, {"tensor": -1}])
def test_axis_sizes_are_positive(sizes):
    with pytest.raises(ConfigError, match="must be at least 1"):
        make_mesh(**sizes)


def test_no_devices():
    with pytest.raises(ConfigError, match="at least one device"):
        make_mesh([])


def test_simulating_too_late_says_so():
    jax.devices()
    simulate_devices(8)
    with pytest.raises(JzeroError, match=r"Cannot simulate 5 CPU devices: .* started with 8 cpu device\(s\)"):
        simulate_devices(5)


def test_simulating_in_a_fresh_process():
    code = "from jzero.sharding.mesh import *; simulate_devices(6); print(dict(make_mesh(tensor=2).shape))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "{'replica': 1, 'shard': 3, 'tensor': 2}"


@pytest.mark.parametrize(
    ("stage", "group", "shape"), [(3, 4, (2, 4, 1)), (3, 8, (1, 8, 1)), (3, -1, (1, 8, 1)), (2, 4, (1, 8, 1))]
)
def test_a_configuration_asks_for_mics_groups_at_stage_3(stage, group, shape):
    config = Config.load({"zero_optimization": {"stage": stage, "mics_shard_size": group}})
    assert mesh_for(config, jax.devices()[:8]).devices.shape == shape


@pytest.mark.parametrize("group", [3, 16])
def test_mics_groups_that_do_not_divide_the_devices(group):
    config = Config.load({"zero_optimization": {"stage": 3, "mics_shard_size": group}})
    with pytest.raises(
        ConfigError, match=f"`zero_optimization.mics_shard_size` = {group} does not divide the 8 devices"
    ):
        mesh_for(config, jax.devices()[:8])


@pytest.mark.parametrize(
    ("stage", "group", "shape"),
    [(3, 4, (2, 4, 1)), (3, 8, (1, 8, 1)), (3, 16, (1, 8, 1)), (3, 1, (1, 8, 1)), (2, 4, (1, 8, 1))],
)
def test_a_configuration_asks_for_two_levels_at_stage_3(stage, group, shape):
    config = Config.load({"zero_optimization": {"stage": stage, "zero_hpz_partition_size": group}})
    assert mesh_for(config, jax.devices()[:8]).devices.shape == shape


def test_groups_that_leave_devices_over_are_refused():
    config = Config.load({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 3}})
    with pytest.raises(
        ConfigError, match=r"`zero_optimization.zero_hpz_partition_size` = 3 does not divide the 8 devices"
    ):
        mesh_for(config, jax.devices()[:8])
    with pytest.raises(
        ConfigError, match=r"`zero_optimization.zero_hpz_partition_size` = 3 does not divide 8 devices .* use 2"
    ):
        config.replaced({"train_batch_size": 8}).resolve(world=8)
    node = Config.load({"zero_optimization": {"stage": 3}, "jzero": {"two_level": "auto"}})
    assert [n_groups(node, n, 8) for n in (4, 8, 64)] == [1, 1, 8]
    with pytest.raises(ConfigError, match=r"`jzero.two_level` = 8 does not divide the 12 devices"):
        n_groups(node, 12, 8)


class _Device(NamedTuple):
    process_index: int


def test_the_devices_of_a_node_are_those_of_a_process_or_of_all_that_were_started_there(monkeypatch):
    assert devices_per_node([_Device(i // 4) for i in range(16)]) == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert devices_per_node([_Device(0)]) == 1  # left over from another program
    monkeypatch.setattr(jax, "process_count", lambda: 16)
    assert devices_per_node([_Device(i) for i in range(16)]) == 8


def test_a_mesh_of_other_groups_than_the_configuration_has():
    batch = helpers.batches(1, 8)[0]
    zero = {"zero_optimization": {"stage": 3, "mics_shard_size": 2}}
    with pytest.raises(
        ConfigError, match=r"`zero_optimization.mics_shard_size` = 2, but the axis `shard` .* has 4 devices"
    ):
        helpers.build(3, batch, replica=2, sections=zero)
    zero = {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}}
    with pytest.raises(
        ConfigError, match=r"`zero_optimization.zero_hpz_partition_size` = 2, but the axis `shard` .* has 4 devices"
    ):
        helpers.build(3, batch, replica=2, sections=zero)
