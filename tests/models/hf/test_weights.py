"""Weights read part by part: every part is what the whole has, and what does not fit is a sentence."""

import functools
import json
import shutil
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.checkpoint.convert.hf_weights import LeafSource, copy_into, open_sources
from jzero.checkpoint.convert.weights import open_weights
from jzero.checkpoint.format.safetensors import Entry, open_file, write
from jzero.errors import CheckpointError
from jzero.models import from_hf
from tests.models.hf.common import GOLDEN, Form, by_path, engine_of, read_alone, tensors_of
from tests.models.hf.test_golden import expected


def sources_of(model):
    leaves = by_path(read_alone(model))
    return open_sources(model.weights, {name: x.shape for name, x in leaves.items()}), leaves


def rewritten(tmp_path, name, change):
    """A folder whose tensors are changed: `change(tensors)` of arrays by name."""
    shutil.copytree(GOLDEN / name, tmp_path / name)
    tensors = {n: entry.read() for n, entry in open_file(GOLDEN / name / "model.safetensors").items()}
    change(tensors)
    entries = [Entry(n, x.shape, x.dtype.name, lambda x=x: [x]) for n, x in tensors.items()]
    write(tmp_path / name / "model.safetensors", entries, {"format": "pt"})
    return tmp_path / name


@functools.cache
def llama(scan):
    return sources_of(from_hf(GOLDEN / "llama", scan_layers=scan))


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_a_part_is_that_of_the_whole(data):
    scan = data.draw(st.booleans())
    sources, leaves = llama(scan)
    name = data.draw(st.sampled_from(sorted(leaves)))
    bounds = [sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))) for n in leaves[name].shape]
    index = tuple(slice(*ends) for ends in bounds)
    np.testing.assert_array_equal(sources[name].read(index, np.float32), leaves[name][index])
    assert sources[name].read(index, ml_dtypes.bfloat16).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
@pytest.mark.parametrize("to", [ml_dtypes.bfloat16, np.float32])
def test_copies_are_casts(dtype, to):
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(dtype)
    x[0, 0], x[1, 1] = np.inf, np.nan
    for part in (x, x.T, x[1:4, 2:], x.T[:3]):
        out = np.zeros(part.shape, to)
        copy_into(out, part)
        np.testing.assert_array_equal(out.astype(np.float32), part.astype(to).astype(np.float32))


def test_rows_for_new_tokens_are_drawn_alike_in_every_part(caplog):
    model = from_hf(GOLDEN / "llama", vocab_size=70)
    sources, leaves = sources_of(model)
    old = by_path(read_alone(from_hf(GOLDEN / "llama")))
    np.testing.assert_array_equal(leaves["wte"][:64], old["wte"])
    np.testing.assert_array_equal(leaves["head.kernel"][:, :64], old["head.kernel"])
    assert 0 < np.abs(leaves["wte"][64:]).max() < 0.2
    for name, index in {"wte": np.s_[60:68, 3:9], "head.kernel": np.s_[3:9, 66:70]}.items():
        np.testing.assert_array_equal(sources[name].read(index, np.float32), leaves[name][index])
    assert "wte has 70 token ids here and 64 there: 6 drawn anew." in caplog.text
    assert by_path(read_alone(from_hf(GOLDEN / "llama", vocab_size=60)))["wte"].shape == (60, 32)


def test_a_new_head_is_drawn_anew(caplog):
    leaves = by_path(read_alone(from_hf(GOLDEN / "roberta", labels=5)))
    assert leaves["head.kernel"].shape == (32, 5)
    assert not leaves["head.bias"].any()
    assert leaves["head.kernel"].any()
    assert "does not hold head.kernel, head.bias: drawn anew, to be trained." in caplog.text


def test_a_model_without_its_head_lends_its_weights(tmp_path):
    def bare(tensors):
        for name in list(tensors):
            value = tensors.pop(name)
            if name.startswith("bert."):
                tensors[name.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma")] = value
        tensors["embeddings.position_ids"] = np.arange(4)

    leaves = by_path(read_alone(from_hf(rewritten(tmp_path, "bert", bare))))
    same = by_path(read_alone(from_hf(GOLDEN / "bert")))
    for name in leaves.keys() - {"head.kernel", "head.bias"}:
        np.testing.assert_array_equal(leaves[name], same[name])


Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.pop(Q), f"lacks {Q.replace('1', 'N')}, which its config.json asks for."),
        (lambda t: t.update({Q: t[Q][:5]}), f"{Q} of"),
        (lambda t: t.update({Q: t[Q][:5]}), "is bfloat16[5,32]; by its config.json it would have the shape (32, 32)."),
        (
            lambda t: t.update({"model.extra": t[Q]}),
            "holds model.extra, for which a llama as its config.json has it has",
        ),
        (lambda t: t.update({Q: t[Q].astype(np.int8)}), "is int8: the weights are quantised"),
        (lambda t: t.update({Q: t[Q].astype(ml_dtypes.float8_e4m3fn)}), "is float8_e4m3fn: the weights are quantised"),
    ],
)
def test_files_that_do_not_fit_are_a_sentence(tmp_path, change, says):
    model = from_hf(rewritten(tmp_path, "llama", change))
    with pytest.raises(CheckpointError) as error:
        read_alone(model)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_of_another_model_are_a_sentence():
    model = from_hf(GOLDEN / "gpt2")
    with pytest.raises(CheckpointError, match=r"the model has h\.attn\.x, which a gpt2 does not have, and the weights"):
        open_sources(model.weights, {"wte": (64, 32), "h.attn.x": (2, 3)})


def test_a_number_too_large_for_the_dtype_is_a_sentence():
    entry = Entry("t", (2,), "float32", lambda: [np.array([1.0, 1e9], np.float32)])
    with pytest.raises(CheckpointError, match=r"w cannot be read as float16: 1000000000\.0 is too large for float16"):
        LeafSource("w", (2,), (entry,)).read((slice(0, 2),), np.float16)


def test_a_cut_file_is_a_sentence(tmp_path):
    shutil.copytree(GOLDEN / "llama", tmp_path / "llama")
    file = tmp_path / "llama" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="cannot be read as safetensors: it holds"):
        read_alone(from_hf(tmp_path / "llama"))


def test_several_files_with_an_index_and_a_tied_copy(tmp_path):
    source = GOLDEN / "gemma2"
    tensors = {n: entry.read() for n, entry in open_file(source / "model.safetensors").items()}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]  # some files hold the table twice
    shutil.copy(source / "config.json", tmp_path)
    names = sorted(tensors)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, some in halves.items():
        write(tmp_path / file, [Entry(n, tensors[n].shape, "bfloat16", lambda n=n: [tensors[n]]) for n in some], {})
    index = {n: file for file, some in halves.items() for n in some}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    leaves, same = (by_path(read_alone(from_hf(folder))) for folder in (tmp_path, source))
    for name, x in same.items():
        np.testing.assert_array_equal(leaves[name], x)


def test_a_leaf_that_no_device_divides_is_padded():
    """601 token ids of 32 numbers: three devices divide neither, so that the stored array is longer than the true."""
    model = from_hf(GOLDEN / "llama-tied", vocab_size=601)
    batch = {"tokens": np.tile(expected("llama")[0]["tokens"], (3, 1))}
    engine = engine_of(model, batch, Form(True, 3, 3))
    assert engine.state.params["wte"].shape == (603, 32)
    for name, x in by_path(read_alone(model)).items():
        np.testing.assert_array_equal(by_path(engine.params)[name], x)


def test_an_engine_in_16_bits_reads_what_the_files_hold():
    batch = {"tokens": expected("qwen2")[0]["tokens"]}
    model = from_hf(GOLDEN / "qwen2")
    engine = engine_of(model, batch, Form(True, 8, 3), bf16={"enabled": True})
    tensors = tensors_of(model, by_path(engine.params))
    for name, entry in open_weights(GOLDEN / "qwen2").entries.items():
        np.testing.assert_array_equal(tensors[name], entry.read().astype(np.float32))


@pytest.mark.parametrize("transform", ["same", "transpose"])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_shard_takes_its_own_memory_and_little_more(tmp_path, transform, dim):
    x = np.ones((5000, 5000), ml_dtypes.bfloat16)  # 50 MB
    write(tmp_path / "x.safetensors", [Entry("x", x.shape, "bfloat16", lambda: [x])], {})
    entry = open_file(tmp_path / "x.safetensors")["x"]
    index = tuple(slice(625, 1250) if d == dim else slice(None) for d in range(2))
    tracemalloc.start()
    try:
        part = LeafSource("x", x.shape, (entry,), transform).read(index, np.float32)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert part.all()
    assert most < part.nbytes + 8e6


@pytest.mark.parametrize("device", ["cpu", "nvme"])
def test_a_state_that_is_offloaded_begins_with_the_weights_too(tmp_path, device):
    model = from_hf(GOLDEN / "gpt2")
    place = {"device": device, **({"nvme_path": str(tmp_path)} if device == "nvme" else {})}
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_optimizer": place}
    if device == "cpu":
        zero["offload_param"] = {"device": "cpu"}
    adamw = {"type": "AdamW", "params": {"lr": 0.01}}
    batch = expected("gpt2")[0]
    engine = engine_of(model, batch, Form(True, 8, 3), zero_optimization=zero, optimizer=adamw)
    for name, x in by_path(read_alone(model)).items():
        np.testing.assert_array_equal(by_path(engine.params)[name], x)
