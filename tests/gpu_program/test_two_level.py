"""What crosses nodes at two levels and with MiCS, read from a GPT's step compiled for two nodes of 8 H100s."""

import functools
import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jzero.jaxpr import JAX_VERSION
from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.losses import next_token_loss
from jzero.plan import compile_step
from jzero.plan.compiled.collectives import link_traffic

N_GPUS, NODE, LAYERS, D = 16, 8, 2, 512
GROUPS = {"flat": {}, "two levels": {"zero_hpz_partition_size": NODE}, "MiCS": {"mics_shard_size": NODE}}
FULL = pytest.mark.full


@functools.cache
def compiled(kind: str, scan_layers: bool = True, n_micro: int = 2):
    sizes = {"vocab_size": 8192, "seq_len": 256, "d_model": D, "n_layer": LAYERS, "n_head": 8}
    config = GPTConfig(**sizes, remat=True, scan_layers=scan_layers)
    rows = N_GPUS * n_micro
    return compile_step(
        model=lambda rngs: GPT(config, rngs=rngs),
        loss_fn=next_token_loss,
        config={
            "train_batch_size": rows,
            "gradient_accumulation_steps": n_micro,
            "zero_optimization": {"stage": 3, **GROUPS[kind]},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        },
        sample_batch={"tokens": jax.ShapeDtypeStruct((rows, config.seq_len + 1), jnp.int32)},
        n_gpus=N_GPUS,
    )


def n_params() -> int:
    return (8192 + 256) * D + LAYERS * (12 * D * D + 13 * D) + 2 * D


def across(program):
    """The collectives whose groups, as the program states them, leave a node; all but sums of small, whole things."""
    crossing = [c for c in program.collectives if c.per_node < c.group_size]
    whole = [c for c in crossing if c.kind == "all-reduce" and c.group_size == N_GPUS]
    assert sum(c.n_bytes * c.executions for c in whole) < 0.02 * n_params()
    return [c for c in crossing if c not in whole]


WAYS = [(True, 2), pytest.param(False, 2, marks=FULL), pytest.param(True, 1, marks=FULL)]


@pytest.mark.parametrize(("scan_layers", "n_micro"), WAYS)
def test_parameters_and_gradients_cross_nodes_once_a_step(scan_layers, n_micro):
    program = compiled("two levels", scan_layers, n_micro)
    crossing = across(program)
    assert {(c.kind, c.dtype, c.group_size, c.per_node) for c in crossing} == {
        ("all-gather", "bf16", 2, 1),
        ("reduce-scatter", "f32", 2, 1),
    }
    divided = sum(math.prod(shape) for shape in matrices(scan_layers).elements())
    for kind in ("all-gather", "reduce-scatter"):
        assert sum(math.prod(c.shape) * c.executions for c in crossing if c.kind == kind) == divided // NODE
    nodes = N_GPUS // NODE
    formula = 6 * n_params() / NODE * (nodes - 1) / nodes
    assert sum(link_traffic(program.collectives).across.values()) <= 1.05 * formula
    # In the loops that stacks cross in nothing runs beside them, and from 0.12 on XLA then makes them blocking ones.
    assert all(c.asynchronous for c in crossing if c.loop is None or JAX_VERSION < (0, 12))


def matrices(scan_layers):
    """The divided parameters, counted: all but vectors, which are under the threshold."""
    layers = {(D, 3 * D): 1, (D, D): 1, (D, 4 * D): 1, (4 * D, D): 1}
    return Counter({shape: LAYERS * n for shape, n in layers.items()} | {(8192, D): 1, (256, D): 1})


@pytest.mark.parametrize("scan_layers", [True, pytest.param(False, marks=FULL)])
def test_no_parameter_is_transposed_or_copied_on_its_way(scan_layers):
    program = compiled("two levels", scan_layers)
    stack = (LAYERS,) if scan_layers else ()
    parts = {
        tuple(sorted((*stack, shape[0] // n, shape[1]))) for shape in matrices(scan_layers) for n in (NODE, N_GPUS)
    }
    moved = re.findall(r"= (?:bf16|f32)\[([\d,]+)\]\S* (transpose|copy)\(", program.hlo_text)
    found = [(shape, kind) for shape, kind in moved if tuple(sorted(map(int, shape.split(",")))) in parts]
    assert found == []


def test_mics_sums_each_parameter_over_nodes_once_a_step():
    crossing = across(compiled("MiCS"))
    assert {(c.kind, c.dtype, c.group_size, c.executions, c.loop) for c in crossing} == {
        ("all-reduce", "f32", 2, 1, None)
    }
    divided = sum(math.prod(shape) for shape in matrices(True).elements())
    assert sum(math.prod(c.shape) for c in crossing) == divided // NODE


@pytest.mark.parametrize("kind", ["two levels", pytest.param("MiCS", marks=FULL)])
def test_inside_nodes_it_sends_what_flat_stage_3_does(kind):
    flat, grouped = (link_traffic(compiled(k).collectives) for k in ("flat", kind))
    for collective in ("all-gather", "reduce-scatter"):
        total = flat.inside[collective] + flat.across[collective]
        assert grouped.inside[collective] == pytest.approx(total * (7 / 8) / (15 / 16), rel=0.01)
    assert sum(flat.across.values()) > 2 * sum(grouped.across.values())
