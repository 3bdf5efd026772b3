"""What a config.json says: published sizes, transformers 4 and 5 alike, and what is refused in a sentence."""

import json

import pytest

from jzero.errors import ConfigError
from jzero.models import build, from_hf
from jzero.models.hf.published import open_published
from jzero.models.hf.rope import Rope
from tests.models.hf.common import GOLDEN

PUBLISHED = json.loads((GOLDEN / "published.json").read_text())
LLAMA = json.loads((GOLDEN / "llama" / "config.json").read_text())


def folder_of(tmp_path, values, **changes):
    values = {key: value for key, value in {**values, **changes}.items() if value != "absent"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    return tmp_path


@pytest.mark.parametrize("known", PUBLISHED, ids=[known["source"].split()[2] for known in PUBLISHED])
def test_published_sizes_parse_and_are_written_back(tmp_path, known):
    published = open_published(folder_of(tmp_path, known["config"]), {})
    assert published.config.n_params == known["n_params"]
    assert published.to_config() == known["config"]


def test_versions_4_and_5_say_the_same(tmp_path):
    flat = {"rope_parameters": "absent", "rope_theta": 5e5, "dtype": "absent", "torch_dtype": "bfloat16"}
    scaling = {k: v for k, v in LLAMA["rope_parameters"].items() if k != "rope_theta"}
    older = open_published(folder_of(tmp_path, LLAMA, **flat, rope_scaling=scaling), {})
    assert older.config == open_published(GOLDEN / "llama", {}).config
    assert older.to_config("float32")["torch_dtype"] == "float32"
    assert "dtype" not in older.to_config("float32")
    gemma = json.loads((GOLDEN / "gemma3" / "config.json").read_text())
    flat = {"rope_parameters": "absent", "rope_theta": 1e6, "rope_local_base_freq": 1e4}
    types = {"layer_types": "absent", "sliding_window_pattern": 2}
    scaling = {"rope_type": "linear", "factor": 8.0}
    older = open_published(folder_of(tmp_path, gemma, **flat, **types, rope_scaling=scaling), {})
    assert older.config == open_published(GOLDEN / "gemma3", {}).config
    assert older.config.rope == Rope(1e6, "linear", 8.0)
    assert open_published(folder_of(tmp_path, gemma, hidden_activation=None), {}).config.activation == "gelu_tanh"


def test_the_text_part_of_a_model_of_images_is_taken(tmp_path, caplog):
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    outer = {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {}}
    model = from_hf(folder_of(tmp_path, outer, text_config=text, torch_dtype="bfloat16"))
    assert model.n_params == 3_880_263_168
    assert "the text part is taken, the others are left out" in caplog.text
    written = model.weights.published.to_config()
    assert (written["architectures"], written["torch_dtype"]) == (["Gemma3ForCausalLM"], "bfloat16")
    assert "vision_config" not in written


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "lama"}, "`model_type` is 'lama' (did you mean 'llama'?), which jzero does not have; it has"),
        ({"model_type": "own", "auto_map": {}}, "The code that its auto_map names is not run."),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised (`quantization_config`, gptq); jzero trains"),
        ({"architectures": ["LlamaForTokens"]}, "`architectures` names LlamaForTokens, and of a llama jzero has"),
        ({"hidden_size": "absent"}, "lacks `hidden_size`, which must be a positive whole number."),
        ({"hidden_size": 2.5}, "`hidden_size` must be a positive whole number, not 2.5."),
        ({"hidden_act": "mish"}, "`hidden_act` must be one of silu, swish, gelu"),
        ({"rms_norm_eps": "small"}, "`rms_norm_eps` must be a number of at least 0, not 'small'."),
        ({"rope_parameters": {"rope_type": "longrope"}}, "`rope_type` is 'longrope', which jzero does not have; it"),
        ({"rope_parameters": {"rope_type": "linear"}}, "`rope_parameters` of"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "`partial_rotary_factor` is 0.5, which jzero does not"),
        ({"rope_parameters": [1]}, "`rope_parameters` must be an object, not [1]."),
        ({"tie_word_embeddings": "no"}, "`tie_word_embeddings` must be true or false, not 'no'."),
        ({"model_type": "qwen2", "architectures": [], "use_mrope": True}, "`use_mrope` is True, which jzero does not"),
        (
            {"model_type": "gemma2", "architectures": [], "layer_types": ["chunked_attention"] * 2},
            "`layer_types` must be a list of full_attention and sliding_attention",
        ),
        ({"model_type": "roberta", "architectures": [], "pad_token_id": None}, "`pad_token_id` must be a token id"),
        ({"model_type": "bert", "architectures": [], "is_decoder": True}, "`is_decoder` is True, which jzero does not"),
        ({"model_type": "bert", "architectures": [], "id2label": {"0": "x"}}, "which makes a regression of it"),
        ({"model_type": "gpt2", "architectures": [], "add_cross_attention": True}, "`add_cross_attention` is True"),
    ],
)
def test_what_jzero_does_not_have_is_a_sentence(tmp_path, changes, says):
    with pytest.raises(ConfigError) as error:
        from_hf(folder_of(tmp_path, LLAMA, **changes))
    assert str(tmp_path / "config.json") in str(error.value)
    assert says in str(error.value)


def test_a_folder_without_a_configuration_is_a_sentence(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read as the configuration of a published model"):
        from_hf(tmp_path)


def test_labels_make_another_head(tmp_path):
    model = from_hf(GOLDEN / "bert", labels=["a", "b", "c", "d"])
    assert model.n_labels == 4
    assert model.weights.published.to_config()["label2id"] == {"a": 0, "b": 1, "c": 2, "d": 3}
    assert from_hf(GOLDEN / "bert", labels=5).n_labels == 5
    with pytest.raises(ConfigError, match="predicts tokens; labels are for bert and roberta"):
        from_hf(GOLDEN / "llama", labels=2)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"hf": ""}, "model.hf must be the path of a folder, or hub:OWNER/NAME, not ''."),
        ({"hf": "x", "d_model": 4}, "model has no 'd_model'"),
        ({"hf": "x", "weights": "yes"}, "model.weights must be true or false, not 'yes'."),
        ({"hf": "hub:name"}, "'hub:name' must be hub:OWNER/NAME or hub:OWNER/NAME@REVISION."),
        ({"hf": str(GOLDEN / "llama"), "vocab_size": 0}, "`vocab_size` must be a positive whole number, not 0."),
        ({"hf": str(GOLDEN / "llama"), "remat": "all"}, "model.remat must be true, false or the name of one of"),
    ],
)
def test_a_wrong_part_of_a_run_file_is_a_sentence(model, says):
    with pytest.raises(ConfigError) as error:
        build(model)
    assert says in str(error.value)


def test_the_hub_is_asked_if_its_package_is_there(monkeypatch):
    import sys
    import types

    asked = []
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = lambda *args, **options: asked.append((args, options)) or str(GOLDEN / "gpt2")
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    assert from_hf("hub:openai-community/gpt2@main").vocab_size == 64
    (((name,), options),) = asked
    assert (name, options["revision"]) == ("openai-community/gpt2", "main")
    assert "*.bin" not in options["allow_patterns"]
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match="downloaded by huggingface_hub, which is not installed"):
        from_hf("hub:openai-community/gpt2")
