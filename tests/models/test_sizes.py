"""Models by name: as large as their papers and released checkpoints say, and scaled with their proportions kept."""

import jax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.errors import ConfigError
from jzero.models import SIZES, build, with_size
from jzero.models.scaling import depth, scaled

# Released checkpoints, counted by their owners or by Hugging Face's and torchvision's pages.
RELEASED = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "vit-b-16": 86_567_656,
    "vit-l-16": 304_326_632,
    "resnet50": 25_557_032,
}


def test_released_models_have_as_many_parameters_as_their_checkpoints():
    assert {name: build({"size": name}).n_params for name in RELEASED} == RELEASED


def test_the_gpt_3_table_has_the_sizes_in_its_names():
    names = [name for name in SIZES if name.startswith("gpt3-")]
    assert set(names) == set(SIZES) - set(RELEASED)
    assert len(names) == 8
    for name in names:
        number, unit = float(name[5:-1]), {"m": 1e6, "b": 1e9}[name[-1]]
        assert build({"size": name}).n_params == pytest.approx(number * unit, rel=0.02)


@pytest.mark.parametrize("name", ["gpt2", "llama-3-8b", "vit-b-16", "resnet50"])
def test_what_is_counted_is_what_is_built(name):
    model = build({"size": name})
    shapes = nnx.state(nnx.eval_shape(lambda: model.factory(nnx.Rngs(0))), nnx.Param)
    assert sum(x.size for x in jax.tree.leaves(shapes)) == model.n_params


def test_what_stands_beside_a_size_takes_its_place():
    model = with_size({"family": "gpt", "size": "gpt2-xl", "n_layer": 2, "remat": True})
    assert (model["d_model"], model["n_layer"], model["remat"]) == (1600, 2, True)
    assert "size" not in model


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"size": "llama2-7b"}, r"model.size is 'llama2-7b' \(did you mean 'llama-2-7b'\?\); known sizes: gpt2, "),
        ({"size": 7}, "model.size is 7; known sizes: gpt2"),
        ({"size": "gpt2", "family": "llama"}, "model.family is 'llama', and model.size 'gpt2' is a gpt."),
        ({"size": "gpt2", "d_ff": 7}, "model has no 'd_ff'"),
    ],
)
def test_a_wrong_size_is_a_sentence(model, says):
    with pytest.raises(ConfigError, match=says):
        build(model)


@pytest.mark.parametrize("name", [name for name in SIZES if name.startswith("gpt3-")])
def test_the_gpt_3_table_scales_to_itself(name):
    assert depth(SIZES[name]["d_model"]) == SIZES[name]["n_layer"]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(name=st.sampled_from([name for name in SIZES if name != "resnet50"]), step=st.integers(1, 300))
def test_scaled_models_keep_their_proportions(name, step):
    size, model, wider = SIZES[name], scaled({"size": name}, step), scaled({"size": name}, step + 1)
    assert model["d_model"] / model["n_head"] == size["d_model"] / size["n_head"]
    assert model["n_head"] % model.get("n_kv_head", 1) == 0
    if "d_ff" in size:
        assert model["n_head"] / model["n_kv_head"] == size["n_head"] / size["n_kv_head"]
        assert abs(model["d_ff"] - size["d_ff"] * model["d_model"] / size["d_model"]) <= 32
    assert build(model).n_params < build(wider).n_params
    grown = {"d_model", "n_head", "n_kv_head", "d_ff", "n_layer"}
    assert {key: value for key, value in model.items() if key not in grown}.items() <= size.items()


def test_only_transformers_scale():
    with pytest.raises(ConfigError, match=r"model.family 'resnet' has no width and depth that could grow together"):
        scaled({"size": "resnet50"}, 2)
