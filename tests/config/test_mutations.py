"""A key that is misspelt, moved, doubled, of a wrong type or of another stage is never taken in silence."""

import contextlib
import copy
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from jzero.config import Config
from jzero.config.schema.hints import key_paths
from jzero.config.schema.section import Section, at
from jzero.config.show.report import lines
from jzero.errors import ConfigError
from tests.config.test_corpus import FILES, REFUSED, SPELLINGS, leaves

SOUND = sorted(set(FILES) - set(REFUSED))
SECTIONS = (
    "",
    "activation_checkpointing",
    "bf16",
    "comms_logger",
    "fp16",
    "optimizer",
    "optimizer.params",
    "scheduler.params",
    "zero_optimization",
    "zero_optimization.offload_optimizer",
)
bounded = settings(max_examples=150, deadline=None, derandomize=True)


@st.composite
def places(draw) -> tuple[dict[str, Any], list[str]]:
    """A sound configuration, and the keys that lead to one of its values."""
    file = copy.deepcopy(FILES[draw(st.sampled_from(SOUND))])
    path = draw(st.sampled_from([path for path, _ in leaves(file)]))
    keys = path.split(".")
    inner = file
    for i, key in enumerate(keys):
        keys[i] = key if key in inner else next(old for old, new in SPELLINGS.items() if new == key and old in inner)
        inner = inner[keys[i]]
    return file, keys


def inside(file: dict[str, Any], keys: list[str]) -> dict[str, Any]:
    for key in keys:
        file = file.setdefault(key, {})
    return file


def schema_of(file: dict[str, Any], keys: list[str]) -> type[Section] | None:
    schema: type[Section] | None = Config
    for key in keys:
        schema = schema and schema.subsection(schema.aliases.get(key, key), file)
        file = file[key]
    return schema


def outcome(file: dict[str, Any]) -> Config | str:
    """What becomes of a configuration: the object, or the sentence."""
    try:
        return Config.load(file)
    except ConfigError as error:
        return str(error)


def check(file: dict[str, Any], keys: list[str], value: Any, *, moved_from: Sequence[str] = ()) -> None:
    """The key is refused by name, or noted, or its value is what holds; the place that it left may be refused too."""
    path = ""
    for key in keys:
        path = at(path, SPELLINGS.get(key, key))
    config = outcome(file)
    if isinstance(config, str):
        assert any(key in config for key in (*keys, *moved_from))
        assert "\n" not in config
        return
    found = {line.path: line.value for line in lines(config)}
    value = tuple(value) if isinstance(value, list) else value
    holds = found.get(path) == value or value is None or (value == {} and isinstance(found.get(path), Section))
    assert holds or any(keys[-1] in note for note in config.notes), (path, value, found.get(path), config.notes)


@bounded
@given(place=places(), position=st.integers(0, 40), edit=st.sampled_from(["q", "_", "s", "", "swap", "upper"]))
def test_misspelt(place, position, edit):
    file, keys = place
    outer, key = inside(file, keys[:-1]), keys[-1]
    i = position % len(key)
    misspelt = {
        "swap": key[:i] + key[i : i + 2][::-1] + key[i + 2 :],
        "upper": key.upper(),
        "": key[:i] + key[i + 1 :],
    }.get(edit, key[:i] + edit + key[i:])
    schema = schema_of(file, keys[:-1])
    assume(schema is not None and misspelt not in {*schema.model_fields, *schema.aliases})
    value = outer.pop(key)
    assume(value is not None)
    outer[misspelt] = value
    config = outcome(file)
    said = [config] if isinstance(config, str) else config.notes
    assert any(f"`{misspelt}`" in sentence or f".{misspelt}`" in sentence for sentence in said)


@bounded
@given(place=places(), section=st.sampled_from(SECTIONS))
def test_moved(place, section):
    file, keys = place
    target = section.split(".") if section else []
    assume(keys[:-1] != target and keys != target[: len(keys)])
    for i in range(len(target)):
        there = inside(file, target[:i]).get(target[i], None if "params" in target else {})
        assume(isinstance(there, dict))  # without its type, nobody knows what belongs into params
    value = inside(file, keys[:-1]).pop(keys[-1])
    assume(keys[-1] not in inside(file, target))
    inside(file, target)[keys[-1]] = value
    check(file, [*target, keys[-1]], value, moved_from=keys)


@bounded
@given(
    place=places(),
    value=st.sampled_from(["x", "7", "5e8", "auto", [], [1], {}, {"a": 1}, True, False, -1, 0.5, 0, 1e30, None])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
)
def test_of_another_type(place, value):
    file, keys = place
    inside(file, keys[:-1])[keys[-1]] = value
    check(file, keys, value)


@bounded
@given(place=places())
def test_doubled(place):
    file, keys = place
    outer = inside(file, keys[:-1])
    outer["DOUBLED"] = outer[keys[-1]]
    text = json.dumps(file).replace('"DOUBLED"', json.dumps(keys[-1]))
    with pytest.raises(ConfigError) as error:
        Config.load(text)
    assert f"`{'.'.join(keys)}` is there twice" in str(error.value)


@bounded
@given(name=st.sampled_from(SOUND), stage=st.sampled_from([0, 1, 2, 3]))
@example(name="069408dc", stage=2)
def test_put_under_another_stage(name, stage):
    file = copy.deepcopy(FILES[name])
    zero = file.setdefault("zero_optimization", {})
    assume(isinstance(zero, dict))
    zero["stage"] = stage
    config = Config.load(file)
    for key, value in zero.items():
        named = any(SPELLINGS.get(key, key) in note for note in config.notes)
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert named or not SPELLINGS.get(key, key).startswith("stage3_") or stage == 3, key
            assert named or key != "sub_group_size" or config.zero_optimization.offloads_optimizer, key
        elif isinstance(value, dict) and value.get("device") == "cpu":
            assert named or stage >= (3 if key == "offload_param" else 1), key


PATHS = sorted(p for p in key_paths(Config) if "params" not in p and p.count(".") < 2)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    path=st.sampled_from(PATHS),
    value=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=4) | st.just("auto"),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=4,
    ),
)
def test_any_value_of_any_key_is_accepted_or_a_sentence(path, value):
    outer, _, key = path.rpartition(".")
    with contextlib.suppress(ConfigError):  # and nothing else
        config = Config.load({outer: {key: value}} if outer else {key: value})
        assert all("\n" not in note for note in config.notes)
        config.resolve(world=8)
