"""Stage 3 carries the GPT in every form: NNX and Linen, layers unrolled and scanned, with and without remat."""

import dataclasses

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import jzero
from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.gpt_linen import GPTLinen
from jzero.models.losses import linen_next_token_loss, next_token_loss
from tests.models.gpt_weights import as_linen, stacked

CONFIG = GPTConfig(vocab_size=61, seq_len=12, d_model=32, n_layer=3, n_head=2)
ROWS, LEARNING_RATE = 16, 1e-2
TOKENS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (3, ROWS, CONFIG.seq_len + 1), dtype=np.int32)


@pytest.fixture(scope="module")
def reference():
    """Losses and final parameters of a plain loop on one device, layers unrolled, nothing rematerialised."""
    graphdef, params = nnx.split(GPT(CONFIG, rngs=nnx.Rngs(3)), nnx.Param)
    initial = jax.tree.map(np.asarray, nnx.to_pure_dict(params))
    optimizer = optax.sgd(LEARNING_RATE)
    opt_state = optimizer.init(params)
    grad = jax.jit(jax.value_and_grad(lambda p, tokens: next_token_loss(nnx.merge(graphdef, p), {"tokens": tokens})))
    losses = []
    for tokens in TOKENS:
        loss, grads = grad(params, tokens)
        updates, opt_state = optimizer.update(grads, opt_state)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return initial, losses, nnx.to_pure_dict(params)


@pytest.mark.parametrize("remat", [False, True], ids=["", "remat"])
@pytest.mark.parametrize("scan_layers", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("api", ["nnx", "linen"])
def test_form_equals_one_device(reference, api, scan_layers, remat):
    initial, losses, final = reference
    config = dataclasses.replace(CONFIG, scan_layers=scan_layers, remat=remat)

    def in_form(params):
        params = stacked(params, config.n_layer) if scan_layers else params
        return as_linen(params, config) if api == "linen" else params

    engine = jzero.initialize(
        model=GPTLinen(config) if api == "linen" else lambda rngs: GPT(config, rngs=rngs),
        loss_fn=linen_next_token_loss if api == "linen" else next_token_loss,
        config={
            "train_batch_size": ROWS,
            "gradient_clipping": 0,
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
            "optimizer": {"type": "SGD", "params": {"lr": LEARNING_RATE}},
        },
        sample_batch={"tokens": TOKENS[0]},
        params=in_form(initial),
    )
    assert any(p.dim is not None for p in jax.tree.leaves(engine.placements))
    np.testing.assert_allclose([float(engine.train_batch({"tokens": t})["loss"]) for t in TOKENS], losses, rtol=1e-6)
    for got, want in zip(*map(jax.tree.leaves, (engine.params, in_form(final))), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
