"""What each stage really does on a cluster, read from the GPT's training step compiled for 8 and 64 H100s."""

import functools
import math
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.losses import next_token_loss
from jzero.plan import compile_step

MIB = 2**20
LAYERS, N_MICRO = 3, 2
SIZES = {"vocab_size": 50304, "seq_len": 256, "d_model": 512, "n_layer": LAYERS, "n_head": 8, "remat": True}

EACH_FOR_ITSELF = {"stage3_prefetch_bucket_size": 0, "stage3_max_reuse_distance": 0}
EMBEDDING = (SIZES["vocab_size"], SIZES["d_model"])  # tied: read by the lookup and by the logits


def compiled(
    stage: int, n_gpus: int, *, scan_layers: bool = True, n_micro: int = N_MICRO, zero: dict | None = None, **sizes: int
):
    config = GPTConfig(**SIZES | sizes, scan_layers=scan_layers)
    rows = n_gpus * n_micro
    return compile_step(
        model=lambda rngs: GPT(config, rngs=rngs),
        loss_fn=next_token_loss,
        config={
            "train_batch_size": rows,
            "gradient_accumulation_steps": n_micro,
            "zero_optimization": {"stage": stage, **(zero or {})},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        },
        sample_batch={"tokens": jax.ShapeDtypeStruct((rows, config.seq_len + 1), jnp.int32)},
        n_gpus=n_gpus,
    )


@functools.cache
def plain(stage: int, n_gpus: int):
    """What several tests read."""
    return compiled(stage, n_gpus)


def block_leaves() -> dict[str, tuple[int, ...]]:
    """The matrices of one block; everything else in it is a vector."""
    d = SIZES["d_model"]
    return {"qkv": (d, 3 * d), "proj": (d, d), "fc": (d, 4 * d), "mlp_proj": (4 * d, d)}


def n_params() -> int:
    d, vocab, seq_len = SIZES["d_model"], SIZES["vocab_size"], SIZES["seq_len"]
    return (vocab + seq_len) * d + LAYERS * (12 * d * d + 13 * d) + 2 * d


def times(program, kind: str) -> Counter:
    """How often each array of at least 256 KiB goes through a collective of this kind in one step."""
    counter = Counter()
    for c in program.select(kind=kind, min_bytes=2**18):
        counter[c.shape] += c.executions
    return counter


def assert_nothing_else(program, *kinds: str) -> None:
    others = [c for c in program.select(min_bytes=MIB) if c.kind not in kinds]
    assert not others, others


FULL = pytest.mark.full


@pytest.mark.parametrize("n_gpus", [8, pytest.param(64, marks=FULL)])
def test_stage_0_sums_the_gradients_and_nothing_else(n_gpus):
    program = plain(0, n_gpus)
    assert program.total_bytes("all-reduce") == pytest.approx(4 * n_params(), rel=1e-3)
    assert_nothing_else(program, "all-reduce")


@pytest.mark.parametrize(("stage", "n_gpus"), [(1, 8), (2, 64), pytest.param(1, 64, marks=FULL), (2, 8)])
def test_stages_1_and_2_gather_once_and_scatter_once(stage, n_gpus):
    program = plain(stage, n_gpus)
    rounds = {1: 1, 2: N_MICRO}[stage]  # once per step; once per micro-batch
    assert {c.dtype for c in program.select(kind="all-gather", min_bytes=2**18)} == {"bf16"}
    assert program.total_bytes("all-gather") == pytest.approx(2 * n_params(), rel=1e-3)
    # Stage 2 scatters the tied embedding's gradient at each of its two uses.
    twice = math.prod(EMBEDDING) * (stage == 2)
    assert program.total_bytes("reduce-scatter") == pytest.approx(4 * (n_params() + twice) * rounds, rel=1e-3)
    gathers, scatters = times(program, "all-gather"), times(program, "reduce-scatter")
    for shape in block_leaves().values():
        assert gathers[shape] == LAYERS
        assert scatters[shape] == LAYERS * rounds
    assert gathers[EMBEDDING] == 1
    assert scatters[EMBEDDING] == rounds * (2 if stage == 2 else 1)
    assert_nothing_else(program, "all-gather", "reduce-scatter")


def test_stage_2_holds_no_whole_gradients():
    sizes = {"vocab_size": 1024, "n_layer": 24}
    stage_1, stage_2 = (compiled(stage, 64, n_micro=1, **sizes).memory.temp for stage in (1, 2))
    gradients = 2 * sizes["n_layer"] * 12 * SIZES["d_model"] ** 2  # in 16 bits
    assert stage_2 < stage_1 - 0.8 * gradients


@pytest.mark.parametrize(
    ("scan_layers", "n_gpus"),
    [(True, 64), (False, 8), pytest.param(True, 8, marks=FULL), pytest.param(False, 64, marks=FULL)],
)
def test_stage_3_gathers_twice_and_scatters_once(scan_layers, n_gpus):
    program = compiled(3, n_gpus, scan_layers=scan_layers, n_micro=1, zero=EACH_FOR_ITSELF)
    gathers, scatters = times(program, "all-gather"), times(program, "reduce-scatter")
    # The last iteration of a pipeline gathers one layer that nobody reads; its first scatters a gradient of zeros.
    more = {"gathers": 1, "qkv": 1} if scan_layers else {"gathers": 0}
    for name, shape in block_leaves().items():
        assert gathers[shape] == 2 * (LAYERS + more["gathers"])  # forward and backward
        assert scatters[shape] == LAYERS + more.get(name, 0)
    assert gathers[EMBEDDING] == 3  # for the lookup, for the logits, and for the gradient through the logits
    assert scatters[EMBEDDING] == 2
    assert {c.dtype for c in program.select(kind="all-gather", min_bytes=2**18)} == {"bf16"}
    assert_nothing_else(program, "all-gather", "reduce-scatter")


@pytest.mark.parametrize("n_gpus", [64, pytest.param(8, marks=FULL)])
def test_stage_3_keeps_what_is_soon_used_again(n_gpus):
    # The whole model has fewer elements than DeepSpeed's default distance, so each parameter is gathered once.
    gathers = times(compiled(3, n_gpus, scan_layers=False, n_micro=1), "all-gather")
    assert all(gathers[shape] == LAYERS for shape in block_leaves().values())
    assert gathers[EMBEDDING] == 1


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_all_state_is_donated(stage):
    memory = plain(stage, 8).memory
    batch_bytes = N_MICRO * 4 * (SIZES["seq_len"] + 1)  # one row of int32 per GPU and micro-batch
    assert memory.alias == pytest.approx(memory.argument - batch_bytes, abs=64)
    if stage:
        assert memory.alias <= 12.1 * n_params() / 8 + 12 * 2e5  # leaves under the threshold are whole
