"""What a large output layer costs at stage 3, with all logits and by chunks, in steps compiled for 8 H100s."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import jzero
from jzero.models import next_token_loss, ops
from jzero.plan import compile_step, estimate_step
from tests.gpu_program.test_stages import EACH_FOR_ITSELF

ROWS, T, D, VOCAB = 4, 4096, 4096, 128256  # on each device
HEAD = (VOCAB, D)
HEAD_BYTES = 2 * VOCAB * D  # in bf16


class Reader(nnx.Module):
    """Hidden states that need a gradient, and an output layer: nothing else takes memory."""

    def __init__(self, rngs):
        self.gain = nnx.Param(jnp.ones(D))
        self.head = nnx.Param(jnp.zeros(HEAD))


def chunked(model, batch):
    return jzero.cross_entropy(batch["x"] * model.gain[...], model.head[...], batch["targets"])


def plain(model, batch):
    tokens = jnp.pad(batch["targets"], ((0, 0), (1, 0)))
    logits = lambda _: ops.logits(batch["x"] * model.gain[...], model.head[...], "vd")
    return next_token_loss(logits, {"tokens": tokens})


def step(loss_fn, **zero):
    """What `compile_step` and `estimate_step` take."""
    return {
        "model": Reader,
        "loss_fn": loss_fn,
        "config": {
            "train_batch_size": 8 * ROWS,
            "zero_optimization": {"stage": 3, **zero},
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        },
        "sample_batch": {
            "x": jax.ShapeDtypeStruct((8 * ROWS, T, D), jnp.bfloat16),
            "targets": jax.ShapeDtypeStruct((8 * ROWS, T), jnp.int32),
        },
        "n_gpus": 8,
    }


@functools.cache
def compiled(loss_fn, **zero):
    return compile_step(**step(loss_fn, **zero))


def test_it_takes_a_fifth_of_the_memory_of_all_logits():
    assert compiled(plain, **EACH_FOR_ITSELF).memory.temp > 4 * ROWS * T * VOCAB
    assert compiled(chunked, **EACH_FOR_ITSELF).memory.temp <= compiled(plain, **EACH_FOR_ITSELF).memory.temp / 5


def test_the_head_is_gathered_once_per_pass_and_its_gradient_scattered_once():
    program = compiled(chunked, **EACH_FOR_ITSELF)
    gathers, scatters = (program.select(kind=kind, min_bytes=2**20) for kind in ("all-gather", "reduce-scatter"))
    assert [(c.shape, c.dtype, c.executions) for c in gathers] == 2 * [(HEAD, "bf16", 1)]
    assert {c.dtype for c in scatters} == {"f32"}
    assert sum(c.n_bytes * c.executions for c in scatters) == 2 * HEAD_BYTES  # in pieces


def test_no_head_waits_for_the_backward_pass_and_its_gradient_takes_its_place():
    # One whole head at a time, gathered or as a gradient: a second one would not fit.
    assert compiled(chunked, **EACH_FOR_ITSELF).memory.temp < 2 * HEAD_BYTES
    # With DeepSpeed's default of `stage3_max_reuse_distance` it waits, and is gathered once.
    (gather,) = compiled(chunked).select(kind="all-gather", min_bytes=2**20)
    assert gather.executions == 1


def test_a_plan_knows_what_it_takes():
    assert estimate_step(**step(chunked)).peak == pytest.approx(compiled(chunked).memory.peak, rel=0.15)
