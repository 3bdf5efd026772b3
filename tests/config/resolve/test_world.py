"""The number of devices that a file fits, where nobody gives one; and MiCS's groups, which must divide it."""

import pytest

from jzero.config import Config
from jzero.config.resolve.world import candidate_worlds
from jzero.errors import ConfigError


def world_of(**file) -> int:
    config = Config.load(file)
    for world in candidate_worlds(config):
        try:
            config.resolve(world=world.size, partly=True)
        except ConfigError:
            continue
        return world.size
    return 0


@pytest.mark.parametrize(
    ("file", "world"),
    [
        ({}, 8),
        ({"train_micro_batch_size_per_gpu": 3}, 8),
        ({"train_batch_size": 64}, 8),
        ({"train_batch_size": 12}, 6),
        ({"train_batch_size": 7}, 7),
        ({"train_batch_size": 11}, 1),
        ({"train_batch_size": 20, "gradient_accumulation_steps": 2}, 5),
        ({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 2}, 3),
        ({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}, 24),
        ({"train_batch_size": 64, "data_parallel_size": 4}, 4),
        ({"zero_optimization": {"stage": 3, "mics_shard_size": 3}}, 3),
        ({"zero_optimization": {"stage": 2, "mics_shard_size": 3}}, 8),
        ({"train_batch_size": 36, "zero_optimization": {"stage": 3, "mics_shard_size": 12}}, 12),
        ({"elasticity": {"enabled": True, "max_train_batch_size": 36, "micro_batch_sizes": [12]}}, 2),
    ],
)
def test_a_world_that_the_file_fits(file, world):
    assert world_of(**file) == world


def test_where_none_fits_the_last_one_tried_says_why():
    file = {"train_batch_size": 7, "gradient_accumulation_steps": 2}
    assert world_of(**file) == 0
    assert candidate_worlds(Config.load(file))[-1].size == 7


@pytest.mark.parametrize(("group", "advice"), [(3, "use 2"), (5, "use 4"), (16, "use 8")])
def test_groups_must_divide_the_devices(group, advice):
    file = {"train_batch_size": 16, "zero_optimization": {"stage": 3, "mics_shard_size": group}}
    with pytest.raises(ConfigError) as error:
        Config.load(file).resolve(world=8)
    assert f"`zero_optimization.mics_shard_size` = {group} does not divide 8 devices into groups" in str(error.value)
    assert f"; {advice}, or a multiple of {group} devices" in str(error.value)
    Config.load({**file, "zero_optimization": {"stage": 2, "mics_shard_size": group}}).resolve(world=8)
