"""What a JSON object of the configuration is: its keys, their other spellings, and the rules between them."""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict

from jzero.base.types import Json
from jzero.config.schema.scalars import escaped
from jzero.errors import ConfigError


class Order(NamedTuple):
    """Two keys of a section whose numbers must not be the other way round.

    Attributes:
        low: the key whose number is the smaller one.
        high: the other key.
        note: what follows where the order is wrong and that is only worth a note; empty where it is an error.
    """

    low: str
    high: str
    note: str = ""


class Section(BaseModel):
    """A JSON object of the configuration."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of a key, and the field they stand for."""

    deprecated: ClassVar[frozenset[str]] = frozenset()
    """The aliases that are no longer to be written, which is worth a note."""

    synonyms: ClassVar[Mapping[str, str]] = {}
    """What people write for a key that is called otherwise: only to point them to it."""

    needless: ClassVar[Mapping[str, str]] = {}
    """Keys of other sections that people write into this one, which does without them, and why."""

    foreign: ClassVar[Mapping[str, str]] = {}
    """Keys of DeepSpeed's past and of other programs that files hold, and why they have no effect."""

    unchecked: ClassVar[bool] = False
    """DeepSpeed looks into such a section for the keys it knows, and never says that there are others."""

    in_order: ClassVar[tuple[Order, ...]] = ()
    """Pairs of keys of which one must not be above the other, defaults included."""

    @classmethod
    def modernise(cls, data: dict[str, Json]) -> Iterator["Mapped"]:
        """Replaces, in `data`, what is said otherwise today, where more than a name has changed."""
        return iter(())

    @classmethod
    def rewrite(cls, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """Completes what was given before it is checked."""
        return data

    @classmethod
    def subsection(cls, name: str, data: Mapping[str, Json]) -> "type[Section] | None":
        """The schema of the object under a key; `data` is the object around it."""
        return next(iter(sections_of(cls.model_fields[name].annotation)), None) if name in cls.model_fields else None

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Rules on what was given, also across keys: yields (key, what is wrong with it)."""
        return iter(())

    def cautions(self) -> Iterator[tuple[str, str]]:
        """Of a section without `"auto"`, what is right but worth a note: yields (key, what it does)."""
        return iter(())


S = TypeVar("S", bound=Section)
SectionType = type[Section]


class Mapped(NamedTuple):
    """A key that is read as another one.

    Attributes:
        key: dotted, inside the section that it is read in.
        value: what it is read as.
        written: dotted, what the file has in its place; empty where the value follows from another key.
        written_value: what that has; or where the value comes from.
    """

    key: str
    value: Json
    written: str
    written_value: Json


@dataclass
class Trace:
    """What reading a configuration finds out beside its values; no part of its identity.

    Attributes:
        origins: dotted path of a key that is set -> where its value comes from.
        notes: a sentence for each key that was not read as it stands.
        problems: a sentence for each thing that is wrong.
        written: dotted path of a key -> what the file calls it, where that is another name.
    """

    origins: dict[str, str] = field(default_factory=dict, compare=False)
    notes: list[str] = field(default_factory=list, compare=False)
    problems: list[str] = field(default_factory=list, compare=False)
    written: dict[str, str] = field(default_factory=dict, compare=False)

    def name(self, path: str) -> str:
        """What the file calls a key, or a key of the section that it calls otherwise.

        >>> Trace(written={"bf16": "bfloat16"}).name("bf16.enabled")
        'bfloat16.enabled'
        """
        outer, rest = path, ""
        while outer not in self.written and "." in outer:
            outer, _, inner = outer.rpartition(".")
            rest = f".{inner}{rest}"
        return self.written[outer] + rest if outer in self.written else path


def sections_of(annotation: object) -> list[type[Section]]:
    """The section types named by a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        return [s for part in get_args(annotation) for s in sections_of(part)]
    return []


def at(path: str, key: Json) -> str:
    r"""The dotted path of a key inside a section, as a message shows it.

    >>> at("fp16", "enabled"), at("", "a\0b")
    ('fp16.enabled', 'a\\x00b')
    """
    return f"{path}.{escaped(key)}" if path else escaped(key)


def given(section: Section) -> dict[str, Json]:
    """The keys that a section was given, as plain dictionaries: the inverse of `jzero.config.schema.building.build`."""
    values = {name: getattr(section, name) for name in sorted(section.model_fields_set)}
    return {name: given(value) if isinstance(value, Section) else value for name, value in values.items()}


def fail(file: str, problems: list[str]) -> None:
    """Raises the problems, if any, as one ConfigError."""
    if problems:
        raise ConfigError(f"{file}: " + "; ".join(dict.fromkeys(problems)))
