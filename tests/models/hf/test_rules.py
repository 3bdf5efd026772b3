"""Rules read both ways, stretched positions are those of transformers, and names are found however they are spelt."""

import json

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from jzero.models.hf import rules
from jzero.models.hf.load import module_of
from jzero.models.hf.published import FAMILIES, open_published
from jzero.models.hf.rope import Rope, yarn_amplitude
from jzero.sharding.placement import path_name
from tests.models.hf.common import GOLDEN

EVERY_RULE = [(name, rule) for name, family in FAMILIES.items() for rule in family.names.rules]


@given(st.sampled_from(EVERY_RULE), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_a_rule_there_and_back_changes_nothing(named, rows, columns, layer):
    _, rule = named
    transform = rules.TRANSFORMS[rule.transform]
    x = np.random.default_rng(rows).standard_normal((rows, columns))
    np.testing.assert_array_equal(transform.into_file(transform.into_leaf(x)), x)
    assert np.shares_memory(transform.into_leaf(x), x)  # a view, of which a part can be read
    tensor, leaf = rule.of_layer(layer)
    assert ("{n}" in rule.tensor) == ("{n}" in rule.leaf)
    assert "{n}" not in tensor + leaf


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_rules_share_a_name(family):
    named = FAMILIES[family].names.rules
    assert len({r.tensor for r in named}) == len({r.leaf for r in named}) == len({r.stacked for r in named})


@pytest.mark.parametrize("scan", [True, False])
@pytest.mark.parametrize(
    "name", [folder.name for folder in sorted(GOLDEN.iterdir()) if (folder / "config.json").exists()]
)
def test_a_rule_for_every_leaf_and_parameters_as_counted(name, scan):
    published = open_published(GOLDEN / name, {"scan_layers": scan})
    module = nnx.eval_shape(lambda: module_of(published.config)(nnx.Rngs(0)))
    shapes = nnx.to_pure_dict(nnx.state(module, nnx.Param))
    leaves = {path_name(path): x for path, x in jax.tree_util.tree_leaves_with_path(shapes)}
    assert sum(x.size for x in leaves.values()) == published.config.n_params
    layers = range(published.config.n_layer)
    made = [
        r.stacked if scan else r.of_layer(n)[1] for r in published.names.rules for n in (layers if r.of_layers else [0])
    ]
    assert leaves.keys() <= set(made)


@pytest.mark.parametrize(
    ("family", "given", "spelt"),
    [
        ("llama", ["embed_tokens.weight", "lm_head.weight"], ["model.embed_tokens.weight", "lm_head.weight"]),
        ("gemma3_text", ["language_model.model.norm.weight"], ["model.norm.weight"]),
        ("gemma3_text", ["model.language_model.norm.weight"], ["model.norm.weight"]),
        ("gpt2", ["h.0.ln_1.weight", "wte.weight"], ["transformer.h.0.ln_1.weight", "transformer.wte.weight"]),
        ("bert", ["bert.embeddings.LayerNorm.gamma"], ["bert.embeddings.LayerNorm.weight"]),
        ("bert", ["embeddings.LayerNorm.beta"], ["bert.embeddings.LayerNorm.bias"]),
        ("roberta", ["roberta.pooler.dense.bias"], ["roberta.pooler.dense.bias"]),
    ],
)  # fmt: skip
def test_other_spellings_are_found(family, given, spelt):
    names = FAMILIES[family].names
    assert names.spelt(given) == dict(zip(spelt, given, strict=True))


def test_what_is_no_parameter_is_dropped():
    assert rules.DECODER.is_dropped("model.layers.0.self_attn.rotary_emb.inv_freq")
    assert rules.GPT2.is_dropped("transformer.h.3.attn.masked_bias")
    assert rules.BERT.is_dropped("cls.predictions.bias")
    assert not rules.BERT.is_dropped("bert.encoder.x")


@pytest.mark.parametrize("name", ["linear", "llama3", "yarn", "yarn-mscale"])
def test_frequencies_are_those_of_transformers(name):
    golden = json.loads((GOLDEN / "rope.json").read_text())[name]
    p = golden["parameters"]
    original = p.get("original_max_position_embeddings", 0)
    if name.startswith("yarn"):
        amplitude = yarn_amplitude(p["factor"], p.get("mscale", 0), p.get("mscale_all_dim", 0))
        more = (p.get("beta_slow", 1), p.get("beta_fast", 32), amplitude, p.get("truncate", True))
    else:
        more = (p.get("low_freq_factor", 1.0), p.get("high_freq_factor", 4.0))
    rope = Rope(p["rope_theta"], p["rope_type"], p["factor"], original, *more)
    np.testing.assert_allclose(rope.frequencies(128), golden["frequencies"], rtol=2e-6)
    assert rope.amplitude == pytest.approx(golden["amplitude"])
