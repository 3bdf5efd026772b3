"""Which parameters live in host memory, by stage, section and ratio."""

import jax
import pytest

from jzero.config import Config
from jzero.offload.plan import plan_offload
from jzero.sharding.placement import place_all
from jzero.zero.stages import stage_plan

SHAPES = {
    "base": (400, 1000),
    "big": (512, 512),
    "middle": (256, 512),
    "small": (100, 100),
}
TRAINABLE = {name: name != "base" for name in SHAPES}
OPTIMIZER = {"offload_optimizer": {"device": "cpu"}}
BOTH = {**OPTIMIZER, "offload_param": {"device": "cpu"}}


def lives(stage, zero, n_shards=8):
    config = Config.load({"train_batch_size": 8, "zero_optimization": {"stage": stage, **zero}})
    plan = stage_plan(stage)
    shapes = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()}
    placements = place_all(shapes, n_shards, shard_single=config.zero_optimization.offloads_params)
    found = plan_offload(config, placements, TRAINABLE, 2**24, persists_small_leaves=plan.persists_small_leaves)
    return {name for name, on_host in found.on_host.items() if on_host}, found


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_optimizer_takes_the_parameters_it_trains_but_small_ones(stage):
    names, found = lives(stage, OPTIMIZER)
    assert names == {"big", "middle"}
    assert not found.at_use


@pytest.mark.parametrize("n_shards", [1, 8])
def test_frozen_parameters_go_with_offload_param(n_shards):
    names, found = lives(3, BOTH, n_shards)
    assert names == {"base", "big", "middle"}
    assert found.at_use
    assert lives(3, {"offload_param": {"device": "cpu"}}, n_shards)[0] == {"base"}


def test_stage_0_offloads_nothing_and_only_stage_3_offloads_parameters():
    assert not lives(0, OPTIMIZER)[0]
    assert not lives(0, OPTIMIZER)[1].is_used
    names, found = lives(2, BOTH)
    assert names == {"big", "middle"}
    assert not found.at_use


def test_a_ratio_keeps_the_smaller_part_on_the_device():
    assert lives(3, {"offload_optimizer": {"device": "cpu", "ratio": 0.5}})[0] == {"big"}
    assert not lives(3, {"offload_optimizer": {"device": "cpu", "ratio": 0.0}})[0]


def test_sub_group_size_bounds_a_piece():
    assert lives(3, {**OPTIMIZER, "sub_group_size": 1000})[1].piece_elements == 1000
    assert lives(3, OPTIMIZER)[1].piece_elements == 2**24
