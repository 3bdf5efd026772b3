"""docs/configuration.md: its tables are those of the schema, and its recipes work."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jzero.config import Config, TrainingArguments
from jzero.config.schema.section import SectionType, sections_of
from jzero.config.schema.zero import ZeroConfig
from jzero.config.show.reference import type_words, updated

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"
TEXT = PAGE.read_text()


def test_the_tables_are_those_of_the_schema():
    assert updated(TEXT) == TEXT, "run `make docs`"


def keys_of(cls: SectionType, path: str = "") -> Iterator[str]:
    for name, field in cls.model_fields.items():
        yield path + name
        for inner in sections_of(field.annotation):
            yield from keys_of(inner, f"{path}{name}.")


def test_every_key_has_a_row_under_the_heading_of_its_section():
    found, section = [], ""
    for line in TEXT.splitlines():
        if heading := re.match(r"#{2,4} (?:`([\w.]+)`|Top level)", line):
            section = f"{heading[1]}." if heading[1] else ""
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.append(section + row[1])
    arguments = [f"training_arguments.{name}" for name in TrainingArguments.model_fields]
    assert sorted(found) == sorted([*keys_of(Config), *arguments])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("stage", "0, 1, 2 or 3"),
        ("sub_group_size", "a whole number at least 0"),
        ("mics_shard_size", "a whole number at least -1"),
        ("overlap_comm", "true or false"),
        ("offload_param", "object"),
    ],
)
def test_types_are_said_as_errors_say_them(key, words):
    assert type_words(ZeroConfig.model_fields[key]) == words


RECIPES = re.findall(r"```(json|yaml)\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize(("kind", "recipe"), RECIPES, ids=[f"{i}-{kind}" for i, (kind, _) in enumerate(RECIPES)])
def test_a_recipe_loads_resolves_and_needs_no_notes(kind, recipe, tmp_path):
    file = tmp_path / f"config.{kind}"
    file.write_text(recipe)
    config = Config.load(file)
    auto = '"auto"' in recipe or kind == "yaml"
    arguments = TrainingArguments(max_steps=100, learning_rate=3e-4, bf16=True) if auto else None
    resolved = config.resolve(world=8, training_arguments=arguments)
    assert resolved.notes == []
    assert resolved.zero_optimization.stage >= 1
    assert resolved.optimizer is not None


def test_there_are_recipes_for_what_people_look_for():
    assert len(RECIPES) == 8
    for words in (
        '"stage": 1',
        '"stage": 2',
        '"stage": 3',
        "offload_param",
        '"fp16"',
        '"bf16"',
        '"auto"',
        "zero_stage",
    ):
        assert words in "".join(text for _, text in RECIPES)
