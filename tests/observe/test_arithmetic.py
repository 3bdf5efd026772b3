"""Flops equal closed forms, whole numbers, for every family; loops count their rounds, and what is frozen less."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jzero
from jzero import models
from jzero.observe import model_flops
from tests.helpers import config, mesh_of

ROWS = 16
LLAMA = {"vocab_size": 61, "seq_len": 12, "d_model": 32, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_ff": 48}
GPT = {"vocab_size": 61, "seq_len": 12, "d_model": 32, "n_layer": 2, "n_head": 2}
VIT = {"image_size": 16, "patch_size": 4, "n_classes": 10, "d_model": 32, "n_layer": 2, "n_head": 2}
LSTM = {"vocab_size": 61, "d_model": 32, "n_layer": 2}
RESNET = {"depth": 6, "n_classes": 10, "width": 8}


def count(loss_fn, model, batch, stage=3, accumulation=1, pairs="visible", **options):
    rows = jax.tree.leaves(batch)[0].shape[0]
    fns = jzero.functional(
        model=model, loss_fn=loss_fn, config=config(stage, rows, accumulation), sample_batch=batch, mesh=mesh_of(8),
        **options,
    )  # fmt: skip
    return model_flops(fns, pairs=pairs)


def of_family(sizes, seq_len=12, **options):
    built = models.build(sizes)
    return count(built.loss_fn, built.factory, built.batch(ROWS, seq_len), **options)


def attention(seq_len, pairs, d_model=32, n_layer=2):
    """Scores, and what they weigh: two products of the pairs of a row."""
    return ROWS * n_layer * 2 * 2 * d_model * pairs


def transformer(per_layer, head, pairs, seq_len=12):
    return 2 * ROWS * seq_len * (2 * per_layer + head) + attention(seq_len, pairs)


LLAMA_LAYER, LLAMA_HEAD = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48, 32 * 61
CAUSAL, WHOLE = 12 * 13 // 2, 12 * 12


@pytest.mark.parametrize("form", [{}, {"scan_layers": True}, {"scan_layers": True, "remat": True, "tie_head": True}])
def test_a_llama(form):
    found = of_family({"family": "llama", **LLAMA, **form})
    forward = transformer(LLAMA_LAYER, LLAMA_HEAD, CAUSAL)
    assert found == (forward, 2 * forward, ())


@pytest.mark.parametrize("form", [{}, {"scan_layers": True}, {"api": "linen"}, {"attention": "plain"}])
def test_a_gpt(form):
    forward = transformer(12 * 32 * 32, 32 * 61, CAUSAL)
    assert of_family({"family": "gpt", **GPT, **form}, stage=0, accumulation=2) == (forward, 2 * forward, ())


def test_the_whole_square_is_counted_on_request():
    assert of_family({"family": "llama", **LLAMA}, pairs="all").forward == transformer(LLAMA_LAYER, LLAMA_HEAD, WHOLE)


def test_gpt2_as_torch_counts_it():
    """torch 2.13.0's FlopCounterMode over GPT2LMHeadModel of transformers 5.24.0, eager attention, 2 rows of 1,024."""
    built = models.build({"size": "gpt2", "scan_layers": True})
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct((8, *x.shape[1:]), x.dtype), built.batch(8, 1024))
    found = count(built.loss_fn, built.factory, batch, pairs="all")
    assert (found.forward / 4, found.step / 4) == (583_296_614_400, 1_749_889_843_200)


def test_a_vit_whose_images_need_no_gradient():
    n_patches, d = 16, 32
    patches = 2 * ROWS * n_patches * 4 * 4 * 3 * d
    rest = ROWS * (2 * (n_patches + 1) * 2 * 12 * d * d + 2 * 2 * 2 * d * (n_patches + 1) ** 2 + 2 * d * 10)
    for form in ({}, {"scan_layers": True}):
        assert of_family({"family": "vit", **VIT, **form}) == (patches + rest, patches + 2 * rest, ())


@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3)])
def test_a_recurrent_network(cell, gates):
    forward = 2 * ROWS * 12 * (2 * gates * 2 * 32 * 32 + 32 * 61)
    assert of_family({"family": "lstm", **LSTM, "cell": cell}) == (forward, 2 * forward, ())


def test_a_resnet():
    """Every kernel is multiplied with each position of its output; the images need no gradient."""
    built = models.build({"family": "resnet", **RESNET})
    batch = {"image": np.zeros((ROWS, 32, 32, 3), np.float32), "label": np.zeros(ROWS, np.int32)}
    stem = 7 * 7 * 3 * 8 * 16**2
    blocks = 2 * 3 * 3 * 8 * 8 * 8**2 + (3 * 3 * 8 * 16 + 3 * 3 * 16 * 16 + 8 * 16) * 4**2
    forward = 2 * ROWS * (stem + blocks + 16 * 10)
    assert count(built.loss_fn, built.factory, batch) == (forward, 2 * forward - 2 * ROWS * stem, ())


class Two(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = (nnx.Linear(16, 16, use_bias=False, rngs=rngs) for _ in range(2))
        self.last = nnx.Linear(16, 4, use_bias=False, rngs=rngs)

    def __call__(self, x):
        return self.last(jnp.sin(self.second(jnp.sin(self.first(x)))))


@pytest.mark.parametrize(
    ("trained", "backward"),
    [("first", 16 * 16 + 16 * 16 + 16 * 4), ("second", 16 * 16 + 16 * 4), ("last", 16 * 4), ("", 3 * 256 + 2 * 64)],
)
def test_what_is_frozen_has_no_gradient_but_may_pass_one_on(trained, backward):
    loss = lambda model, x: (model(x) ** 2).mean()
    x = np.zeros((ROWS, 16), np.float32)
    found = count(loss, lambda rngs: Two(rngs), x, trainable=lambda name: trained in name)
    assert (found.forward, found.backward) == (2 * ROWS * (256 + 256 + 64), 2 * ROWS * backward)


class Product(nn.Module):
    """`x` times a square matrix, as often and in whatever it is told."""

    how: str

    @nn.compact
    def __call__(self, x):
        w = self.param("w", nn.initializers.ones, (16, 16))
        if self.how == "loop":
            return jax.lax.scan(lambda h, _: (h @ w, None), x @ jnp.zeros((16, 16)), None, 5)[0]
        if self.how == "branch":
            return jax.lax.cond(x.sum() > 0, lambda: x @ w, lambda: (x @ w) @ w)
        if self.how == "until":
            return jax.lax.while_loop(lambda h: h.sum() > 0, lambda h: h @ w, x)
        return x @ jnp.linalg.inv(w)


ONE = 2 * ROWS * 16 * 16


@pytest.mark.parametrize(
    ("how", "forward", "backward", "uncounted"),
    [
        ("loop", 6 * ONE, 10 * ONE, ""),  # the constant before the loop has no gradient; what is carried needs one
        ("branch", 2 * ONE, 3 * ONE, ""),
        ("until", ONE, 2 * ONE, "while (its length depends on data, and it counts as one round)"),
        ("inverse", None, None, "lu (linear algebra)"),
    ],
)
def test_loops_branches_and_what_is_not_known(how, forward, backward, uncounted):
    loss = lambda model, x: (model(x) ** 2).mean()
    stage = 0 if how in ("until", "inverse") else 3  # a loop of unknown length has no gradient, and is only traced
    found = count(loss, Product(how), np.ones((ROWS, 16), np.float32), stage=stage)
    assert forward is None or (found.forward, found.backward) == (forward, backward)
    assert uncounted in (found.uncounted or ("",))
