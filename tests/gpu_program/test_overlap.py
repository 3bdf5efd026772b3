"""How much stage 3 hides and holds, read from a 7.5B-parameter GPT's training step compiled for 64 H100s."""

import jax
import jax.numpy as jnp
import pytest

from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.losses import next_token_loss
from jzero.plan import Program, compile_step

GB = 1e9
MIB = 2**20
D = 4096
BLOCK = 2 * 12 * D * D  # bytes of one block's matrices in bf16


def compiled(*, scan_layers: bool, n_layer: int = 36, vocab_size: int = 50304, **zero) -> Program:
    config = GPTConfig(
        vocab_size=vocab_size,
        seq_len=1024,
        d_model=D,
        n_layer=n_layer,
        n_head=32,
        scan_layers=scan_layers,
        remat=True,
    )
    return compile_step(
        model=lambda rngs: GPT(config, rngs=rngs),
        loss_fn=next_token_loss,
        config={
            "train_batch_size": 64,
            "zero_optimization": {"stage": 3, **zero},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        },
        sample_batch={"tokens": jax.ShapeDtypeStruct((64, config.seq_len + 1), jnp.int32)},
        n_gpus=64,
    )


def test_scanned_layers_hide_every_collective_of_their_loops():
    program = compiled(scan_layers=True)
    assert program.overlapped_share(min_bytes=MIB, in_loops=True) >= 0.98
    assert program.memory.temp < 2.4 * GB
    n_params = (50304 + 1024) * D + 36 * (12 * D * D + 13 * D) + 2 * D
    assert n_params == pytest.approx(7.46e9, rel=1e-3)
    assert program.memory.alias < 12.1 * n_params / 64  # fp32 master and moments, all of them donated


def test_without_overlap_scanned_layers_hold_less():
    assert compiled(scan_layers=True, overlap_comm=False).memory.temp < 1.9 * GB


def test_unrolled_layers_hide_most_of_what_they_send_and_hold_no_more():
    program = compiled(scan_layers=False, n_layer=18)
    assert program.overlapped_share(min_bytes=MIB) >= 0.9
    half_of_the_inputs = 18 * 1024 * D * 2  # of 36 blocks, each of which keeps one in bf16
    assert program.memory.temp < 2.6 * GB - half_of_the_inputs
    kinds = {c.kind for c in program.select(min_bytes=MIB)}
    assert kinds <= {"all-gather", "reduce-scatter", "all-reduce"}


@pytest.fixture(scope="module")
def temp_by_live():
    """Working memory of 6 unrolled blocks that may prefetch as much as they like, by what may be alive, in blocks."""
    limits = {"stage3_prefetch_bucket_size": 10**10, "stage3_max_reuse_distance": 0}
    return {
        blocks: compiled(
            scan_layers=False,
            n_layer=6,
            vocab_size=1024,
            stage3_max_live_parameters=int(blocks * 12.01 * D * D),
            **limits,
        ).memory.temp
        for blocks in (0, 2, 5)
    }


def test_two_blocks_alive_are_at_most_three_in_memory(temp_by_live):
    rest = temp_by_live[0] - BLOCK  # activations, gradients, and one block's weights
    assert temp_by_live[2] < rest + 3 * BLOCK


def test_memory_follows_what_may_be_alive(temp_by_live):
    assert temp_by_live[0] < temp_by_live[2] < temp_by_live[5] - BLOCK
