"""The table of what each device holds counts what is really there."""

import io
import math

import jax
import numpy as np
import pytest
from rich.console import Console

import jzero
from jzero.explain.memory import device_bytes, memory_breakdown, memory_table
from jzero.models import build

SIZES = {"vocab_size": 256, "seq_len": 16, "d_model": 128, "n_layer": 2, "n_head": 2}
BATCH = {"tokens": np.zeros((8, 17), np.int32)}


def engine(stage: int, n_devices: int = 8, *, zero: dict | None = None, replica: int = 1, **options):
    model = build({"family": "gpt", **SIZES})
    zero = {"stage": stage, "stage3_param_persistence_threshold": options.pop("threshold", 0), **(zero or {})}
    config = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": zero}
    config |= {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
    mesh = jzero.make_mesh(jax.devices()[:n_devices], replica=replica)
    return jzero.initialize(
        model=model.factory, loss_fn=model.loss_fn, config=config, sample_batch=BATCH, mesh=mesh, **options
    )


@pytest.mark.parametrize(
    ("stage", "per_parameter"),
    [(0, (4, 8, 4, 2)), (1, (4 / 8, 8 / 8, 4, 2)), (2, (4 / 8, 8 / 8, 4 / 8, 2)), (3, (4 / 8, 8 / 8, 4 / 8, None))],
)
def test_bytes_are_what_the_stage_promises(stage, per_parameter):
    e = engine(stage)
    n_params = sum(x.size for x in jax.tree.leaves(e.params))
    n_whole = sum(math.prod(p.shape) for p in jax.tree.leaves(e.placements) if p.dim is None)
    assert (n_whole == 0) == (stage == 3), "small leaves stay whole, but here stage 3 has a threshold of 0"
    parts = {h.part: h for h in memory_breakdown(e)}
    names = ["master parameters", "optimizer state", "gradients", "parameters in compute"]
    for name, each, whole in zip(names, per_parameter, (4, 8, 4, 2), strict=True):
        if each is not None:
            assert parts[name].n_bytes == pytest.approx(each * (n_params - n_whole) + whole * n_whole, rel=1e-3)
    largest = max(x.size for x in jax.tree.leaves(e.params))
    if stage == 3:
        assert parts["parameters in compute"].n_bytes == 2 * largest
    paper = {0: 16.0, 1: 4 + 12 / 8, 2: 2 + 14 / 8, 3: 16 / 8}[stage]
    assert sum(h.paper_bytes or 0 for h in parts.values()) == pytest.approx(paper * n_params)


def test_small_leaves_that_stay_whole_are_counted_and_named():
    parts = {h.part: h for h in memory_breakdown(engine(3, threshold=128))}
    plain = {h.part: h for h in memory_breakdown(engine(3))}
    assert parts["master parameters"].n_bytes > plain["master parameters"].n_bytes
    assert "14 small ones whole" in parts["master parameters"].why
    assert "whole" not in plain["master parameters"].why


def test_frozen_parameters_have_neither_gradients_nor_optimizer_state():
    e = engine(2, trainable=lambda name: "wte" not in name)
    trained = {name: p for name, p in e.placements.items() if name != "wte"}
    n_elements = sum(math.prod(p.shard_shape) for p in jax.tree.leaves(trained))
    parts = {h.part: h for h in memory_breakdown(e)}
    assert parts["gradients"].n_bytes == 4 * n_elements
    assert parts["optimizer state"].n_bytes == pytest.approx(8 * n_elements, rel=1e-3)


def test_device_bytes_takes_the_fullest_device():
    one, everywhere = jax.devices()[3], jax.sharding.NamedSharding(jzero.make_mesh(), jax.sharding.PartitionSpec())
    tree = [jax.device_put(np.zeros(10, np.float32), one), jax.device_put(np.zeros(5, np.int8), everywhere)]
    assert device_bytes(tree) == 45


def test_the_table_shows_numbers_formulas_and_reasons():
    out = io.StringIO()
    Console(file=out, width=140).print(memory_table(engine(1)))
    text = out.getvalue()
    for word in (
        "stage 1",
        "4P/8",
        "8P/8",
        "2P",
        "divided over 8 devices",
        "gathered once at the start of the step",
        "scattered once",
    ):
        assert word in text


def test_one_device_holds_everything():
    parts = {h.part: h for h in memory_breakdown(engine(3, n_devices=1))}
    assert parts["master parameters"].why == "whole on each device"
    assert parts["master parameters"].formula == "4P"


def test_two_levels_show_the_part_of_a_group_and_what_crosses_groups():
    e = engine(3, zero={"zero_hpz_partition_size": 4}, replica=2)
    n_params = sum(x.size for x in jax.tree.leaves(e.params))
    parts = {h.part: h for h in memory_breakdown(e)}
    assert parts["master parameters"].n_bytes == pytest.approx(4 * n_params / 8, rel=1e-3)
    assert parts["gradients"].n_bytes == pytest.approx(4 * n_params / 4, rel=1e-3)
    assert parts["its group's part of parameters"].n_bytes == pytest.approx(2 * n_params / 4, rel=1e-3)
    assert parts["its group's part of parameters"].formula == "2P/4"
    text = io.StringIO()
    Console(file=text, width=200).print(memory_table(e))
    assert "divided over 8 devices in 2 groups" in text.getvalue()
    assert "sent inside a group" in text.getvalue()
    assert "sent across groups" in text.getvalue()
