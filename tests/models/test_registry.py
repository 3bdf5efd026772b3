"""The `model` part of a run file, and what is said about a wrong one."""

import pytest
from flax import linen as nn
from flax import nnx

from jzero.errors import ConfigError
from jzero.models import build

SIZES = {"vocab_size": 256, "seq_len": 8, "d_model": 16, "n_layer": 1, "n_head": 2}
KNOWN = "gpt, llama, vit, resnet, lstm"


def test_nnx_is_the_default_and_linen_is_there():
    model = build({"family": "gpt", **SIZES})
    assert isinstance(nnx.eval_shape(lambda: model.factory(nnx.Rngs(0))), nnx.Module)
    assert (model.hidden_size, model.seq_len, model.vocab_size) == (16, 8, 256)
    assert isinstance(build({"family": "gpt", "api": "linen", **SIZES}).factory, nn.Module)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({}, f"model lacks family; known families: {KNOWN}."),
        (
            {"family": "gtp"},
            f"model.family is 'gtp' (did you mean 'gpt'?); known families: {KNOWN}.",
        ),
        (
            {"family": "gpt", "n_layers": 2},
            "model has no 'n_layers' (did you mean 'n_layer'?); known: vocab_size, seq_len, ",
        ),
        (
            {"family": "gpt", "vocab_size": 256},
            "model lacks seq_len, d_model, n_layer, n_head, which a gpt cannot do without.",
        ),
        (
            {"family": "gpt", "api": "nnnx", **SIZES},
            "model.api is 'nnnx' (did you mean 'nnx'?); it must be nnx or linen.",
        ),
    ],
)
def test_a_wrong_model_part_is_a_sentence(model, says):
    with pytest.raises(ConfigError) as error:
        build(model)
    assert str(error.value).startswith(says)
