"""Groups of devices have one meaning at a time, and are read at stage 3."""

import pytest

from jzero.config import Config
from jzero.errors import ConfigError

HPZ, MICS = {"zero_hpz_partition_size": 4}, {"mics_shard_size": 4}
AUTO = {"two_level": "auto"}


@pytest.mark.parametrize(
    ("zero", "own", "message"),
    [
        (HPZ | MICS, {}, r"`zero_optimization.zero_hpz_partition_size` = 4 is refused with `mics_shard_size` = 4"),
        (HPZ, AUTO, r'`jzero.two_level` = "auto" is refused with `zero_optimization.zero_hpz_partition_size`'),
        (MICS, AUTO, r'`jzero.two_level` = "auto" is refused with `zero_optimization.mics_shard_size`'),
        ({}, {"two_level": 8}, r"two_level.*none.*auto"),
    ],
)
def test_two_meanings_are_refused(zero, own, message):
    with pytest.raises(ConfigError, match=message):
        Config.load({"zero_optimization": {"stage": 3, **zero}, "jzero": own})
    if zero:
        assert not Config.load({"zero_optimization": {"stage": 2, **zero}, "jzero": own}).asks_two_levels


def test_a_node_s_devices_are_left_to_the_mesh():
    config = Config.load({"train_batch_size": 8, "zero_optimization": {"stage": 3}, "jzero": AUTO}).resolve(world=8)
    assert config.asks_two_levels
    assert not [note for note in config.notes if "two_level" in note]
