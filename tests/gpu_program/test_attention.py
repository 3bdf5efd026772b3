"""cuDNN's attention in programs for GPUs that are not there: it compiles, counts, and saves what it is for."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import jzero
from jzero import models
from jzero.plan import compile_step, estimate_step

HEADS, WIDTH, TOKENS, VOCAB, D, LAYERS = 24, 64, 2048, 1024, 512, 4


def jax_cudnn(q, k, v):
    """As models call it that know nothing of jzero."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


class Block(nn.Module):
    attend: object

    @nn.compact
    def __call__(self, x):
        heads = nn.Dense(3 * HEADS * WIDTH, dtype=x.dtype)(x).reshape(*x.shape[:2], 3 * HEADS, WIDTH)
        y = self.attend(*jnp.split(heads, 3, axis=2))
        return x + nn.Dense(D, dtype=x.dtype)(y.reshape(*x.shape[:2], -1))


class Decoder(nn.Module):
    """Rematerialised blocks, scanned or one after the other."""

    attend: object
    scanned: bool

    @nn.compact
    def __call__(self, tokens):
        x = nn.Embed(VOCAB, D)(tokens).astype(jnp.bfloat16)
        block = nn.remat(Block, prevent_cse=not self.scanned)
        if self.scanned:
            run = lambda block, x, _: (block(x), None)
            split = {"params": True}
            x, _ = nn.scan(run, variable_axes={"params": 0}, split_rngs=split, length=LAYERS)(
                block(self.attend), x, None
            )
        else:
            for _ in range(LAYERS):
                x = block(self.attend)(x)
        return nn.Dense(VOCAB, dtype=x.dtype)(x)


def loss_fn(model, batch):
    return jnp.square(model(batch["tokens"]).astype(jnp.float32)).mean()


def case(attend, stage, *, scanned=True, n_micro=1, **zero):
    rows = 8 * n_micro
    return {
        "model": Decoder(attend, scanned),
        "loss_fn": loss_fn,
        "config": {
            "train_batch_size": rows,
            "gradient_accumulation_steps": n_micro,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW"},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, **zero},
        },
        "sample_batch": {"tokens": jax.ShapeDtypeStruct((rows, TOKENS), jnp.int32)},
    }


ours = functools.partial(jzero.attention, causal=True)
plain = functools.partial(jzero.attention, causal=True, implementation="plain")


@pytest.mark.parametrize(
    "settings",
    [
        {"stage": 0},
        {"stage": 1, "n_micro": 2, "offload_optimizer": {"device": "cpu"}},
        {"stage": 2, "scanned": False, "n_micro": 2},
        {"stage": 3},
        {"stage": 3, "scanned": False},
        {"stage": 3, "overlap_comm": False, "n_micro": 2},
    ],
    ids=str,
)
def test_models_that_call_cudnn_compile(settings):
    text = compile_step(**case(jax_cudnn, **settings)).hlo_text
    assert "__cudnn$fmhaSoftmax" in text
    assert "__cudnn$fmhaSoftmaxBackward" in text


@pytest.mark.parametrize(
    ("scanned", "overlap_comm", "most"), [(True, True, 88), (True, False, 82), (False, True, 165), (False, False, 100)]
)
def test_working_memory_is_that_of_rows_and_not_of_scores(scanned, overlap_comm, most):
    """MB. Queries, keys, values and their gradients of a layer are 38, its gathered weights 5, all gradients 19."""
    assert compile_step(**case(ours, 3, scanned=scanned, overlap_comm=overlap_comm)).memory.temp < most * 1e6


def test_all_scores_at_once_take_seven_times_as_much():
    assert compile_step(**case(plain, 3)).memory.temp > 7 * 90e6


def test_flops_are_counted_though_no_product_is_in_the_program():
    products = {
        name: compile_step(**case(attend, 3)).loops() for name, attend in {"ours": ours, "plain": plain}.items()
    }
    flops = {name: 989.4e12 * sum(loop.product_seconds for loop in loops) for name, loops in products.items()}
    # A causal mask leaves half of the scores: two products forward, two again, five backward, and all eight otherwise.
    seen = (TOKENS + 1) / (2 * TOKENS)
    assert flops["plain"] - flops["ours"] == pytest.approx(
        (8 - 9 * seen) * LAYERS * 2 * HEADS * WIDTH * TOKENS**2, rel=0.01
    )
    blocks = estimate_step(**case(ours, 3)).work.blocks
    estimated = sum(block.times * kernel.flops.get("bf16", 0) for block in blocks for kernel in block.kernels)
    assert estimated == pytest.approx(flops["ours"], rel=0.001)


def test_what_cudnn_takes_is_asked_of_the_gpu_that_the_program_is_for():
    x = jax.ShapeDtypeStruct((8, 512, 2, 256), jnp.bfloat16)

    class Model:
        def init(self, key, batch):
            return {"w": jnp.ones((256, 256))}

    def loss(params, batch):
        q = batch["x"].astype(jnp.bfloat16) @ params["w"].astype(jnp.bfloat16)
        return jzero.attention(q, q, q).astype(jnp.float32).mean()

    config = {"train_batch_size": 8, "optimizer": {"type": "Adam"}, "bf16": {"enabled": True}}
    texts = [
        compile_step(model=Model(), loss_fn=loss, config=config, sample_batch={"x": x}, gpu=gpu).hlo_text
        for gpu in ("h100-80g", "a100-80g")
    ]
    assert ["__cudnn$fmha" in text for text in texts] == [True, False]


def test_llama_2_7b_fits_as_it_is_and_the_closed_form_knows():
    model = models.build({"size": "llama-2-7b"})
    case = {
        "model": model.factory,
        "loss_fn": model.loss_fn,
        "config": {
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW"},
            "zero_optimization": {"stage": 3},
        },
        "sample_batch": model.batch(8, 4096),
    }
    program = compile_step(**case, gpu="a100-80g", n_gpus=8)
    estimate = estimate_step(**case, gpu="a100-80g", n_gpus=8)
    assert "__cudnn$fmhaSoftmaxBackward" in program.hlo_text
    # 16 arrays of the width in 16 bits a layer, as a hand count has it, and what the head and the embedding take.
    layer = 2 * 4096 * (8 * 4096 + 3 * 11008)
    assert 32 * layer < estimate.activations < 1.3 * 32 * layer
    assert estimate.peak == pytest.approx(program.memory.peak, rel=0.15)
