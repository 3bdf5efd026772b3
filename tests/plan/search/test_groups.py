"""A plan for several nodes looks at stage 3 flat, at two levels and with MiCS, and says what decides."""

import io
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from rich.console import Console

from jzero.plan import Setting, plan
from jzero.plan.render.plan_table import plan_view
from jzero.plan.search.setting import changes, settings

D, N, NODE = 2048, 32, 8
N_PARAMS = 2 * D * D
BASE = Setting(3, "nothing", 64, 4)
TWO, MICS = (replace(BASE, groups=groups, group=NODE) for groups in ("two levels", "MiCS"))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = (nnx.Linear(D, D, use_bias=False, rngs=rngs) for _ in range(2))

    def __call__(self, x):
        return self.down(jax.nn.relu(self.up(x)))


def planned(network="100gb-roce", n_gpus=N, zero=None, accumulation=4, **sections):
    rows = 64 * accumulation * n_gpus
    return plan(
        model=Net,
        loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
        config={
            "train_batch_size": rows,
            "gradient_accumulation_steps": accumulation,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 3, **(zero or {})},
            **sections,
        },
        sample_batch=jax.ShapeDtypeStruct((rows, D), jnp.float32),
        n_gpus=n_gpus,
        network=network,
        stages=(3,),
        compiled="nothing",
    )


@pytest.fixture(scope="module")
def found():
    return planned()


def test_the_three_are_side_by_side_with_what_they_hold_and_send(found):
    rows = {row.setting.groups: row for row in found.rows if row.setting.offload == "nothing"}
    assert [*rows] == ["none", "two levels", "MiCS"]
    across = {groups: sum(row.wire.across.values()) for groups, row in rows.items()}
    nodes, part = N // NODE, N_PARAMS // NODE
    assert across["two levels"] == pytest.approx(6 * part * (nodes - 1) / nodes, rel=0.01)
    assert across["MiCS"] == pytest.approx(8 * part * (nodes - 1) / nodes, rel=0.01)
    assert across["none"] > 3 * across["MiCS"]  # it keeps what it gathers for the backward pass
    state = {groups: row.bytes_by_part["parameters"] for groups, row in rows.items()}
    assert state == {"none": 4 * N_PARAMS // N, "two levels": 4 * N_PARAMS // N, "MiCS": 4 * N_PARAMS // NODE}


def test_a_slow_network_takes_two_levels_and_says_why(found):
    assert found.recommendation.setting == TWO
    assert found.changes == {"zero_optimization.zero_hpz_partition_size": NODE}
    assert "Take stage 3 at two levels" in found.recommendation.reason
    assert " to other nodes in a step, stage 3 " in found.recommendation.reason
    assert " and stage 3 with MiCS " in found.recommendation.reason


def test_bytes_inside_a_node_and_on_the_network_have_columns_of_their_own(found):
    written = io.StringIO()
    Console(width=100, file=written).print(plan_view(found))
    text = written.getvalue()
    assert "in node network" in text
    assert {"3 two-level", "3 MiCS"} <= {line[:11].strip() for line in text.splitlines()}


def test_one_node_has_no_groups():
    assert {row.setting.groups for row in planned(n_gpus=NODE).rows} == {"none"}


@pytest.mark.parametrize(
    ("zero", "own", "base"),
    [
        ({"zero_hpz_partition_size": 16}, {}, replace(TWO, group=16)),
        ({"mics_shard_size": 8}, {}, MICS),
        ({}, {"jzero": {"two_level": "auto"}}, TWO),
    ],
)
def test_what_is_given_is_among_what_is_looked_at(zero, own, base):
    found = planned(zero=zero, accumulation=1, **own)
    assert found.base == replace(base, accumulation=1)
    assert found.base in {row.setting for row in found.rows}
    assert {row.setting.group for row in found.rows} == {1, base.group}


def test_a_setting_says_which_keys_make_it_another():
    assert changes(BASE, TWO) == {"zero_optimization.zero_hpz_partition_size": 1, "jzero.two_level": "none"}
    assert changes(MICS, BASE) == {"zero_optimization.mics_shard_size": NODE}
    assert [str(s) for s in settings(BASE, [2, 3], NODE) if s.offload == "nothing"] == [
        "stage 2",
        "stage 3",
        "stage 3 at two levels",
        "stage 3 with MiCS",
    ]
