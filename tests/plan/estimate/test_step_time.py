"""Times of steps: against published throughputs, in the order that users of each stage know, and by hand."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest

from jzero import models
from jzero.config import Config
from jzero.plan import Cluster, Setting, gpu_figures
from jzero.plan.compiled.collectives import read_collectives
from jzero.plan.compiled.step_time import compiled_time
from jzero.plan.compiled.timeline import simulate
from jzero.plan.estimate.step import abstract_functional, closed_form
from jzero.plan.estimate.step_time import closed_form_time
from jzero.plan.estimate.traced import Block, Message, Work
from jzero.plan.hardware.kernel import Kernel
from jzero.plan.hardware.pace import FAST, MIDDLE, SLOW
from jzero.plan.search.row import closed_form_row
from jzero.plan.training import Training
from tests.plan.toy import TOY, done, gather, product, program


def functional(*, stage, n_gpus, micro_batch, accumulation=1, seq_len=2048, **sizes):
    model = models.build({"family": "llama", "vocab_size": 32000, "seq_len": seq_len, "scan_layers": True, **sizes})
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW"},
        "zero_optimization": {"stage": stage},
    }
    rows = micro_batch * accumulation * n_gpus
    batch = {"tokens": jax.ShapeDtypeStruct((rows, seq_len + 1), jnp.int32)}
    return abstract_functional(Training(model.factory, model.loss_fn, Config.load(config), batch), n_gpus)


def step_time(found, gpu, n_gpus, network=""):
    return closed_form_row(Setting(0, "nothing", 1, 1), Cluster(gpu, n_gpus, network=network), found)


SEVEN_B = {"d_model": 4096, "n_layer": 32, "n_head": 32}


def test_seven_billion_parameters_run_as_fast_as_published():
    """Llama 2 7B fully sharded on 128 A100s has 35 to 55 % of the peak in public reports, at 6 flops a parameter."""
    row = step_time(functional(stage=3, n_gpus=128, micro_batch=4, **SEVEN_B), "a100-80g", 128)
    assert row.n_params == pytest.approx(6.74e9, rel=0.01)
    seconds = lambda share: 6 * row.n_params * 4 * 2048 / (share * gpu_figures("a100-80g").flops["bf16"])
    assert row.time.low < seconds(0.50) < seconds(0.40) < row.time.high
    assert row.time.high < seconds(0.25)
    assert row.time.low < row.time.middle < row.time.high < 2.5 * row.time.low


@pytest.fixture(scope="module")
def stages():
    sizes = {"d_model": 2048, "n_layer": 16, "n_head": 16, "n_gpus": 32, "micro_batch": 1, "accumulation": 4}
    return [functional(stage=stage, **sizes) for stage in range(4)]


@pytest.fixture(scope="module")
def work_of_stages(stages):
    return [closed_form(found).work for found in stages]


def times(work_of_stages, gpu, network=""):
    cluster = Cluster(gpu, 32, network=network)
    groups = {(): (1, 1), ("shard",): (32, 8)}
    return [
        closed_form_time(work, groups, cluster.figures, pipelined=stage == 3)
        for stage, work in enumerate(work_of_stages)
    ]


def test_stage_3_pays_for_its_gathers_on_a_slow_network(work_of_stages):
    """It gathers in both passes of each micro-batch, stage 2 once per step."""
    slow = times(work_of_stages, "a100-80g", "25gb-eth")
    assert slow[3].low > slow[2].high
    assert slow[3].wire > 1.5 * slow[2].wire
    assert all(time.exposed > time.compute for time in slow)
    fast = times(work_of_stages, "a100-80g", "200gb-ib")
    assert fast[3].exposed < 0.3 * fast[3].wire
    assert fast[3].low < fast[2].high
    assert [t.compute for t in slow] == [t.compute for t in fast]  # in which the network has no part


def test_the_faster_gpu_is_faster(work_of_stages):
    by_gpu = [times(work_of_stages, gpu) for gpu in ("l40s", "a100-80g", "h100-80g", "b200")]
    for slower, faster in pairwise(by_gpu):
        assert all(a.low > b.low and a.high > b.high for a, b in zip(slower, faster, strict=True))


def test_rows_have_the_time_of_their_cluster(stages, work_of_stages):
    row = step_time(stages[3], "a100-80g", 32, "100gb-roce")
    assert row.time == row.closed_form_time == times(work_of_stages, "a100-80g", "100gb-roce")[3]
    assert row.to_dict()["time"] == vars(row.time)


def work(*blocks):
    return Work(tuple(blocks), Kernel(n_bytes=0, flops={"f32": 8192}))


def test_parts_add_up_and_hide_in_their_own_block():
    """Two rounds with a second of products, a gather of 2 and a sum of 1 that is waited for; a gather, an update."""
    one, two = Kernel({"f32": 8192}), Message("all-gather", ("shard",), 896, 1, False)
    awaited = Message("all-reduce", ("shard",), 448, 2, True)
    found = closed_form_time(
        work(Block(1, None, [], [two]), Block(2, 0, [one], [two, awaited])),
        {("shard",): (8, 8)},
        TOY,
        pipelined=False,
        to_device=1024,
        to_host=2048,
    )
    assert found.compute == pytest.approx((2 + 1) / MIDDLE.products)
    assert found.wire == pytest.approx((3 * 2 + 2) / MIDDLE.wire)
    assert found.exposed == pytest.approx(found.wire - 2 / MIDDLE.products)  # all that the rounds compute hides it
    assert found.pcie == found.pcie_exposed == pytest.approx(3 / MIDDLE.pcie)
    for seconds, pace in ((found.low, FAST), (found.middle, MIDDLE), (found.high, SLOW)):
        hidden = min(2 / pace.products, 0.7 * 4 / pace.wire)
        assert seconds == pytest.approx(3 / pace.products + 8 / pace.wire - hidden + 3 / pace.pcie)


def test_a_compiled_program_takes_what_its_schedule_says():
    module = program([gather("a"), product("p"), done("a"), product("r")])
    collectives = read_collectives(module)
    found = compiled_time(module, collectives, TOY)
    assert found.low == pytest.approx(simulate(module, collectives, TOY.at(FAST)).seconds)
    assert found.low == pytest.approx(2 / FAST.wire + 1 / FAST.products)
    assert found.high == pytest.approx(2 / SLOW.wire + 1 / SLOW.products)
    assert found.middle == pytest.approx(2 / MIDDLE.wire + 1 / MIDDLE.products)
    assert (found.compute, found.wire) == (pytest.approx(2 / MIDDLE.products), pytest.approx(2 / MIDDLE.wire))
