"""`jzero export`, `import` and `inspect`: weights leave as files that others read, and come back bit for bit."""

import dataclasses
import json
import shutil
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from flax import nnx
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

import jzero
from jzero import models
from jzero.checkpoint import read_header
from jzero.checkpoint.convert.exporting import export
from jzero.checkpoint.convert.importing import read_params, read_rules
from jzero.cli.program import app
from tests.helpers import batches, build, host

NAMES = Path(__file__).parents[2] / "docs" / "gpt2_names.json"
SIZES = {"vocab_size": 61, "seq_len": 8, "d_model": 16, "n_layer": 2, "n_head": 2}
GPT = {"family": "gpt", **SIZES}
TOKENS = {"tokens": np.random.default_rng(0).integers(0, 61, (8, 9), np.int32)}


def run(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 2, result.output
    return " ".join(result.stderr.split())


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """A GPT's engine at stage 3, no two parameters alike, and its checkpoint."""
    built = models.build(GPT)
    engine = build(3, TOKENS, model=built.factory, loss_fn=built.loss_fn)
    random = np.random.default_rng(0)
    noisy = lambda x: jax.device_put(np.asarray(x) + random.standard_normal(x.shape, np.float32), x.sharding)
    engine.state = dataclasses.replace(engine.state, params=jax.tree.map(noisy, engine.state.params))
    path = tmp_path_factory.mktemp("gpt") / "checkpoint-1"
    engine.save_checkpoint(path, {"model": GPT})
    return engine, path


def flat(params) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): x
        for path, x in jax.tree_util.tree_leaves_with_path(host(params))
    }


def assert_equal(actual, expected):
    assert actual.keys() == expected.keys()
    for name, x in actual.items():
        assert (x.shape, x.dtype) == (expected[name].shape, expected[name].dtype), name
        assert x.tobytes() == expected[name].tobytes(), name


def test_safetensors_own_reader_reads_an_export(gpt, tmp_path):
    out = run("export", gpt[1], tmp_path)
    (file,) = tmp_path.iterdir()
    assert out == f"{file} {file.stat().st_size:,} bytes\n"
    assert_equal(load_file(file), flat(gpt[0].params))
    with safetensors.safe_open(file, "numpy") as opened:
        assert opened.metadata()["format"] == "flax"
        assert json.loads(opened.metadata()["jzero"]) == {"step": 0, "aliases": {}, "model": GPT}


@pytest.mark.parametrize("options", [[], ["--max-shard-size", "6KB"], ["--format", "npz"]])
def test_an_export_comes_back_bit_for_bit(gpt, tmp_path, options):
    engine, path = gpt
    run("export", path, tmp_path / "weights", *options)
    model = tmp_path / "run.json"
    model.write_text(json.dumps({"model": GPT}))
    said = run("import", tmp_path / "weights", tmp_path / "back", *["--model", model] * ("npz" in options))
    assert said.startswith(
        f"{tmp_path / 'back'} holds {sum(x.size for x in flat(engine.params).values()):,} parameters"
    )
    before = flat(engine.params)
    checksums = {
        name: leaf.checksum for name, leaf in read_header(path)[1].leaves.items() if name.startswith("params/")
    }
    assert {name: leaf.checksum for name, leaf in read_header(tmp_path / "back")[1].leaves.items()} == checksums
    engine.state = engine.functional.init(np.uint32(5))
    engine.load_checkpoint(tmp_path / "back", only="params/*")
    assert_equal(flat(engine.params), before)
    engine.load_checkpoint(path)


def test_a_sharded_export_has_an_index(gpt, tmp_path):
    run("export", gpt[1], tmp_path, "--max-shard-size", "6KB")
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    parts = {file.name: load_file(file) for file in files}
    assert_equal({name: parts[file][name] for name, file in index["weight_map"].items()}, flat(gpt[0].params))
    assert index["metadata"] == {"total_size": sum(x.nbytes for x in flat(gpt[0].params).values())}
    assert all(sum(x.nbytes for x in part.values()) <= 6000 or len(part) == 1 for part in parts.values())


def test_bf16_is_the_rounded_export(gpt, tmp_path):
    run("export", gpt[1], tmp_path, "--dtype", "bf16")
    with safetensors.safe_open(tmp_path / "model.safetensors", "flax") as opened:
        loaded = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (it is no dict)
    expected = {name: x.astype(jnp.bfloat16) for name, x in flat(gpt[0].params).items()}
    assert_equal({name: np.asarray(x) for name, x in loaded.items()}, expected)
    assert "bfloat16, which npz does not have" in refused(
        "export", gpt[1], tmp_path, "--dtype", "bf16", "--format", "npz"
    )


def test_inspect_shows_what_is_inside_without_loading(gpt):
    shown = run("inspect", gpt[1].parent)
    assert "params/h/0/attn/qkv/kernel" in shown
    assert "16 x 48" in shown
    data = json.loads(run("inspect", gpt[1], "--json"))
    assert data["leaves"]["params/wte"] == {
        **data["leaves"]["params/wte"],
        "shape": [61, 16],
        "dtype": "float32",
        "bytes": 3904,
    }
    assert data["step"] == 0
    assert data["layout"]["stage"] == 3
    assert data["config"]["zero_optimization"]["stage"] == 3
    assert data["bytes"] == sum(leaf["bytes"] for leaf in data["leaves"].values())
    assert data["bytes_on_disk"] == sum(
        f.stat().st_size for f in gpt[1].rglob("*") if f.is_file() and f.name != "jzero.json"
    )


class Tied(nnx.Module):
    """A head that is the embedding, statistics that are no parameters, and integers."""

    def __init__(self, rngs):
        self.embed, self.head = nnx.Linear(129, 8, rngs=rngs), nnx.Linear(129, 8, use_bias=False, rngs=rngs)
        self.head.kernel = self.embed.kernel
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.table = nnx.Param(jnp.arange(3))

    def __call__(self, x):
        return self.norm(self.embed(x) + self.head(x))


def test_tied_parameters_are_written_once_with_their_aliases(tmp_path):
    engine = build(2, batches(1, 8)[0], model=Tied, n_devices=2)
    engine.save_checkpoint(tmp_path / "c")
    run("export", tmp_path / "c", tmp_path / "out")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert set(weights) == {*flat(engine.params), "norm.mean", "norm.var"}
    assert "head.kernel" not in weights
    assert weights["table"].dtype == np.int32
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "numpy") as opened:
        assert json.loads(opened.metadata()["jzero"])["aliases"] == {"head.kernel": "embed.kernel"}


def as_gpt2(params: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The GPT under the names of Hugging Face's GPT-2, with what else stands in its files."""
    names = {
        ".qkv.": ".c_attn.",
        ".attn.proj.": ".attn.c_proj.",
        ".mlp.fc.": ".mlp.c_fc.",
        ".mlp.proj.": ".mlp.c_proj.",
        ".kernel": ".weight",
        ".scale": ".weight",
    }
    renamed = {}
    for name, x in params.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        renamed[f"transformer.{name}" + (".weight" if name in {"wte", "wpe"} else "")] = x
    masks = {
        f"transformer.h.{i}.attn.{name}": np.ones((1, 1, 8, 8), bool)
        for i in range(2)
        for name in ("bias", "masked_bias")
    }
    return {**renamed, **masks, "lm_head.weight": params["wte"]}


@pytest.mark.parametrize("kind", ["safetensors", "torch", "torch, sharded"])
def test_deepspeeds_consolidated_weights_come_by_a_map_of_names(gpt, tmp_path, monkeypatch, kind):
    engine, path = gpt
    before, weights = flat(engine.params), as_gpt2(flat(engine.params))
    (tmp_path / "run.json").write_text(json.dumps({"model": GPT}))
    words = ("import", tmp_path, tmp_path / "c", "--model", tmp_path / "run.json", "--names", NAMES)
    if kind == "safetensors":
        save_file(weights, tmp_path / "model.safetensors")
    else:
        files = ["pytorch_model.bin"] if kind == "torch" else ["pytorch_model-1.bin", "pytorch_model-2.bin"]
        index = {"weight_map": {name: files[i % len(files)] for i, name in enumerate(weights)}}
        for file in files:
            (tmp_path / file).write_text("torch reads it")
        if len(files) > 1:
            (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
        monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
        assert f"{files[0]} is a torch state dict, which needs PyTorch: pip install 'jzero[torch]'." in refused(*words)
        held = lambda file: {name: Tensor(x) for name, x in weights.items() if index["weight_map"][name] == file.name}
        stands_for_it = types.SimpleNamespace(load=lambda file, **options: held(file), int16="int16")
        monkeypatch.setitem(sys.modules, "torch", stands_for_it)
    run(*words)
    engine.state = engine.functional.init(np.uint32(5))
    engine.load_checkpoint(tmp_path / "c", only="params/*")
    assert_equal(flat(engine.params), before)
    engine.load_checkpoint(path)


def test_weights_come_into_a_model_of_ones_own(tmp_path):
    params = {
        "layer": {"kernel": jax.ShapeDtypeStruct((3, 2), jnp.float32)},
        "bias": jax.ShapeDtypeStruct((2,), jnp.float32),
    }
    kernel, bias = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, jnp.bfloat16)
    np.savez(tmp_path / "w.npz", **{"net.weight": kernel, "net.bias": np.ones(2, np.float16), "step": np.zeros(1)})
    rules = [
        {"from": r"net\.weight", "to": "layer.kernel", "transpose": True},
        {"from": r"net\.(.*)", "to": r"\1"},
        {"from": "step"},
    ]
    (tmp_path / "names.json").write_text(json.dumps(rules))
    read = read_params(tmp_path / "w.npz", params, read_rules(tmp_path / "names.json"))
    np.testing.assert_array_equal(read["layer"]["kernel"], kernel.T)
    np.testing.assert_array_equal(read["bias"], bias.astype(np.float32))
    assert read["bias"].dtype == np.float32
    with pytest.raises(jzero.CheckpointError, match="No rule of the map of names fits 'step'"):
        read_params(tmp_path / "w.npz", params, rules[:-1])
    with pytest.raises(jzero.CheckpointError, match=r"layer.kernel is float32\[2,3\] there and float32\[3,2\] here"):
        read_params(tmp_path / "w.npz", params, [{**rules[0], "transpose": False}, *rules[1:]])


class Tensor:
    """As much of a torch tensor as is asked of one."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, f"torch.{array.dtype}"

    def numpy(self):
        return self.array


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("inspect", "{0}/nowhere"), "error: There is no checkpoint at {0}/nowhere: the folder does not exist."),
        (("export", "{0}", "{0}/out"), "{0} holds no complete checkpoint"),
        (("export", "{1}", "{0}/file/out"), "{0}/file/out cannot be written to: Not a directory."),
        (("export", "{1}", "{0}/out", "--max-shard-size", "much"), "'much' is no size; write one such as 5GB"),
        (("import", "{0}", "{0}/c"), "{0} holds none of model.safetensors.index.json, model.safetensors, "),
        (("import", "{0}/file", "{0}/c"), "{0}/file cannot be read as safetensors: it ends inside its header."),
        (("import", "{2}", "{0}/c", "--model", "{0}/run.json"), "is of another model"),
        (("import", "{2}", "{0}/c", "--names", "{0}/file"), "{0}/file cannot be read as a map of names"),
    ],
)
def test_bad_input_is_one_sentence(gpt, tmp_path, words, says):
    run("export", gpt[1], tmp_path / "weights")
    (tmp_path / "file").write_text("no weights at all")
    (tmp_path / "run.json").write_text(json.dumps({"model": {**GPT, "d_model": 8}}))
    places = (tmp_path, gpt[1], tmp_path / "weights")
    assert says.format(*places) in refused(*(word.format(*places) for word in words))


def test_damage_is_found_on_the_way_out(gpt, tmp_path):
    path = Path(shutil.copytree(gpt[1], tmp_path / "c"))
    for file in (path / "arrays").rglob("d/*"):
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    with pytest.raises(jzero.JzeroError, match=r"is damaged"):
        export(path, tmp_path / "out")
