"""A seeded search: files that were changed at random give the right arrays or a sentence, and no error of Python's."""

import json
import random

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from jzero import checkpoint
from jzero.checkpoint.convert.exporting import export
from jzero.checkpoint.convert.importing import read_params, read_rules
from jzero.checkpoint.format import header
from jzero.cli.inspect import summary, view
from jzero.errors import CheckpointError
from tests.cli.test_printing import printed

WEIGHTS = {"a": np.arange(4, dtype=np.float32).reshape(2, 2), "b": np.ones(3, np.float32)}
STATE = {"params": {"a": jnp.arange(6.0), "b": jnp.ones((3, 3))}}
JUNK = (None, True, -1, 0, 1.5, 1e400, 2**70, 10**400, "", "x", "/dev/zero", "../x", "\0", [], {}, [1], {"a": 1})

pytestmark = pytest.mark.filterwarnings("ignore:.*does not list:UserWarning")


def changed(value, luck):
    """A JSON value with one random change somewhere in it."""
    if not isinstance(value, dict | list) or not value or luck.random() < 0.3:
        return luck.choice(JUNK)
    value = value.copy()
    key = luck.choice(list(value)) if isinstance(value, dict) else luck.randrange(len(value))
    chance = luck.random()
    if chance < 0.2:
        del value[key]
    elif chance < 0.4 and isinstance(value, dict):
        value[luck.choice(["", "x", "../x", "/dev/zero", "params/a"])] = value[key]
    elif chance < 0.4:
        value.append(luck.choice(JUNK))
    else:
        value[key] = changed(value[key], luck)
    return value


def damaged(content, luck):
    """Bytes of which a few are others, are gone or have come in between."""
    content = bytearray(content)
    for _ in range(luck.randint(1, 4)):
        at, n = luck.randrange(len(content)), luck.choice([0, 0, 1, 20])
        content[at : at + luck.choice([0, 1, n])] = luck.randbytes(n or 1)
    return bytes(content)


def given(call):
    """What a call gives, or None if it is refused in one sentence."""
    try:
        return call()
    except CheckpointError as error:
        said = str(error)
    assert "\n" not in said
    return None


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "c"
    checkpoint.save(path, STATE, {"step": 1, "config": {"fp16": {}}, "extra": {"model": None}}).wait()
    return path


def use(path):
    """Everything that reads a checkpoint; the values come last."""
    found = checkpoint.read_header(path)
    printed(view(*found))
    json.dumps(summary(*found))
    given(lambda: export(path, path.parent / "out"))
    return checkpoint.load(path, STATE)[0]


def search(saved, folder, seed, n):
    luck = random.Random(seed)
    before = json.loads((saved / header.FILE).read_text())
    for _ in range(n):
        after = before | {"content": changed(before["content"], luck)}
        after["crc32"] = header._crc(after["content"])
        (saved / header.FILE).write_text(json.dumps(after))
        state = given(lambda: use(saved))
        assert state is None or np.array_equal(state["params"]["a"], np.arange(6))
        (saved / header.FILE).write_bytes(damaged(json.dumps(before).encode(), luck))
        given(lambda: checkpoint.read_header(saved))
    (saved / header.FILE).write_text(json.dumps(before))

    read = lambda name: given(lambda: read_params(folder / name, WEIGHTS))
    save_file(WEIGHTS, folder / "m.safetensors")
    np.savez(folder / "m.npz", **WEIGHTS)
    np.savez_compressed(folder / "n.npz", **WEIGHTS)
    whole = {file: (folder / file).read_bytes() for file in ("m.safetensors", "m.npz", "n.npz")}
    length = int.from_bytes(whole["m.safetensors"][:8], "little")
    head, data = whole["m.safetensors"][8 : 8 + length], whole["m.safetensors"][8 + length :]
    for _ in range(5 * n):
        text = json.dumps(changed(json.loads(head), luck)).encode()
        (folder / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        read("x.safetensors")
        (folder / "x.safetensors").write_bytes(damaged(whole["m.safetensors"], luck))
        read("x.safetensors")
        for file in ("m.npz", "n.npz"):
            (folder / "x.npz").write_bytes(damaged(whole[file], luck))
            arrays = read("x.npz")
            assert arrays is None or all(np.array_equal(arrays[name], x) for name, x in WEIGHTS.items())
        index = changed({"weight_map": {"a": "m.safetensors", "b": "m.safetensors"}}, luck)
        (folder / "m.safetensors.index.json").write_text(json.dumps(index))
        arrays = read("m.safetensors.index.json")
        assert arrays is None or all(np.array_equal(arrays[name], x) for name, x in WEIGHTS.items())
        rules = changed([{"from": "(.*)", "to": r"\1", "transpose": False}, {"from": "x"}], luck)
        (folder / "rules.json").write_text(json.dumps(rules))
        given(lambda: read_params(folder / "m.npz", WEIGHTS, read_rules(folder / "rules.json")))


def test_changed_files_give_the_right_arrays_or_a_sentence(saved, tmp_path):
    search(saved, tmp_path, seed=0, n=50)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(1, 6))
def test_more_changed_files_give_the_right_arrays_or_a_sentence(saved, tmp_path, seed):
    search(saved, tmp_path, seed, n=200)
