"""The width of a model, read from the shapes of its parameters, and "auto" sizes that follow from it."""

import numpy as np
import pytest

import jzero
from jzero.config.resolve.auto import hidden_size_of
from jzero.models import build
from jzero.zero.shapes import adapted, model_width
from tests import helpers


@pytest.mark.parametrize(
    ("shapes", "width"),
    [
        ([], None),
        ([(8,), ()], None),
        ([(4, 1)], 4),
        ([(8, 64), (64,), (64, 1), (1,)], 64),
        ([(8, 64), (64, 64), (64, 64), (64, 10)], 64),
        # An LSTM's gates, four times as wide as its state; a vocabulary that is narrower than the model.
        ([(50, 128), (128, 512), (128, 512), (512,), (128, 50)], 128),
        # Five stacked layers whose heads are dimensions of their own.
        (
            [(99, 32), (5, 32, 4, 8), (5, 32, 4, 8), (5, 32, 4, 8), (5, 4, 8, 32), (5, 32, 128), (5, 128, 32), (5, 32)],
            32,
        ),
    ],
)
def test_the_width_of_small_models(shapes, width):
    assert hidden_size_of(shapes) == width


TEXT = {"vocab_size": 61, "seq_len": 12, "d_model": 32}
IMAGES = {"image_size": 16, "patch_size": 4, "n_classes": 10, "d_model": 32}


@pytest.mark.parametrize(
    "spec",
    [
        {"family": "gpt", **TEXT, "n_layer": 2, "n_head": 4},
        {"family": "gpt", **TEXT, "n_layer": 3, "n_head": 2, "scan_layers": True},
        {"family": "gpt", **TEXT, "n_layer": 1, "n_head": 4, "api": "linen"},
        {"family": "llama", **TEXT, "n_layer": 1, "n_head": 4, "n_kv_head": 2, "d_ff": 48},
        {"family": "vit", **IMAGES, "n_layer": 2, "n_head": 2},
        {"family": "lstm", "vocab_size": 61, "d_model": 32, "n_layer": 2},
    ],
    ids=lambda spec: " ".join(map(str, spec.values())),
)
def test_the_width_of_every_family_is_found(spec):
    built = build(spec)
    batch = {"tokens": np.zeros((2, 13), np.int32)}
    if spec["family"] == "vit":
        batch = {"image": np.zeros((2, 16, 16, 3), np.float32), "label": np.zeros(2, np.int32)}
    model = adapted(built.factory, built.loss_fn, jzero.Config.load({"train_batch_size": 2}))
    assert model_width(model, batch) == built.hidden_size == 32


def test_auto_sizes_follow_from_the_model_that_is_trained(caplog):
    caplog.set_level("INFO", "jzero")
    batch = helpers.batches(1, 8)[0]
    names = ("reduce_bucket_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold")
    config = helpers.config(3, 8) | {
        "zero_optimization": {"stage": 3, "contiguous_gradients": False, **dict.fromkeys(names, "auto")}
    }
    engine = jzero.initialize(model=helpers.make_net, loss_fn=helpers.squared_error, config=config, sample_batch=batch)
    zero, width = engine.config.zero_optimization, helpers.D_HIDDEN
    assert tuple(getattr(zero, name) for name in names) == (width**2, int(0.9 * width**2), 10 * width)
    assert engine.config.notes == [record.message for record in caplog.records if record.name == "jzero"] != []
    assert engine.config.origins[f"zero_optimization.{names[0]}"] == f"auto from the hidden size {width}"
