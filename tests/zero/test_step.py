"""The training step: all stages agree with each other and with a plain optax loop on one device."""

import functools

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.losses import next_token_loss

GPT_CONFIG = GPTConfig(vocab_size=67, seq_len=16, d_model=32, n_layer=2, n_head=2)
ROWS, LEARNING_RATE, MAX_NORM = 32, 3e-3, 1.0
N_STEPS = {"fp32": 30, "bf16": 10, "fp16": 10}
PRECISION = {
    "fp32": {},
    "bf16": {"bf16": {"enabled": True}},
    "fp16": {"fp16": {"enabled": True, "initial_scale_power": 10, "loss_scale_window": 10}},
}
SIXTEEN_BITS = [
    ("bf16", 1),
    ("fp16", 4),
    pytest.param("bf16", 4, marks=pytest.mark.full),
    pytest.param("fp16", 1, marks=pytest.mark.full),
]


def batches(n_steps=30):
    rng = np.random.default_rng(0)
    successor = rng.permutation(GPT_CONFIG.vocab_size).astype(np.int32)
    for _ in range(n_steps):
        tokens = np.empty((ROWS, GPT_CONFIG.seq_len + 1), np.int32)
        tokens[:, 0] = rng.integers(0, GPT_CONFIG.vocab_size, ROWS)
        for k in range(GPT_CONFIG.seq_len):
            tokens[:, k + 1] = successor[tokens[:, k]]
        yield {"tokens": tokens}


def model(rngs):
    return GPT(GPT_CONFIG, rngs=rngs)


@pytest.fixture(scope="module")
def initial_params():
    return nnx.to_pure_dict(nnx.state(model(nnx.Rngs(7)), nnx.Param))


@pytest.fixture(scope="module")
def optax_losses(initial_params):
    """A data-parallel-free, ZeRO-free loop: one device, whole batch, fp32."""
    graphdef, state = nnx.split(model(nnx.Rngs(7)))
    tx = optax.adamw(LEARNING_RATE, weight_decay=0.01)
    opt_state = tx.init(state)

    @jax.jit
    def step(state, opt_state, batch):
        loss, grads = jax.value_and_grad(lambda s: next_token_loss(nnx.merge(graphdef, s), batch))(state)
        norm = optax.tree.norm(grads)
        grads = jax.tree.map(lambda g: g / jax.numpy.maximum(norm / MAX_NORM, 1.0), grads)
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = tx.update(grads, opt_state, state)
        return optax.apply_updates(state, updates), opt_state, loss

    losses = []
    for batch in batches():
        state, opt_state, loss = step(state, opt_state, batch)
        losses.append(float(loss))
    return np.array(losses)


def losses_of(initial_params, stage, precision, n_micro):
    config = {
        "train_batch_size": ROWS,
        "gradient_accumulation_steps": n_micro,
        "gradient_clipping": MAX_NORM,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100},
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": 0.01}},
        **PRECISION[precision],
    }
    engine = jzero.initialize(
        model=model, loss_fn=next_token_loss, config=config, sample_batch=next(batches()), params=initial_params
    )
    metrics = [engine.train_batch(batch) for batch in batches(N_STEPS[precision])]
    assert int(metrics[-1]["applied_steps"]) == N_STEPS[precision]
    return np.array([float(m["loss"]) for m in metrics])


@pytest.fixture(scope="module")
def run(initial_params):
    """The losses by stage, precision and number of micro-batches; each is trained once."""
    return functools.cache(functools.partial(losses_of, initial_params))


@pytest.mark.parametrize("n_micro", [1, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_fp32_equals_one_device(run, optax_losses, stage, n_micro):
    np.testing.assert_allclose(run(stage, "fp32", n_micro), optax_losses, rtol=1e-6)


@pytest.mark.parametrize(("precision", "n_micro"), SIXTEEN_BITS)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_16_bit_stages_agree(run, stage, precision, n_micro):
    np.testing.assert_allclose(run(stage, precision, n_micro), run(0, precision, n_micro), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize(("precision", "n_micro"), SIXTEEN_BITS)
def test_16_bits_learn_like_fp32(run, optax_losses, precision, n_micro):
    losses = run(3, precision, n_micro)
    np.testing.assert_allclose(losses, optax_losses[: len(losses)], atol=0.02)
