"""From a mapping to a typed, frozen section: an unknown key or a wrong value becomes one sentence.

`build` walks the mapping beside the schema, so that a message can name the full path of a key, the nearest known name,
and the section where a misplaced key belongs. pydantic validates the values.
"""

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from jzero.config.verdicts import switched_on, verdict
from jzero.errors import ConfigError


class Section(BaseModel):
    """A JSON object of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of a key, and the field they stand for."""

    synonyms: ClassVar[Mapping[str, str]] = {}
    """What people write for a key that is called otherwise: only to point them to it."""

    @classmethod
    def rewrite(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Turns deprecated spellings that are more than a name into today's keys."""
        return data

    @classmethod
    def subsection(cls, name: str, data: Mapping[str, Any]) -> "type[Section] | None":
        """The schema of the object under a key; `data` is the object around it."""
        return next(iter(sections_of(cls.model_fields[name].annotation)), None) if name in cls.model_fields else None

    @classmethod
    def complaints(cls, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Rules on what was given, also across keys: yields (key, what is wrong with it)."""
        return iter(())


S = TypeVar("S", bound=Section)
SectionType = type[Section]


def sections_of(annotation: Any) -> list[type[Section]]:
    """The section types named by a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        return [s for part in get_args(annotation) for s in sections_of(part)]
    return []


def build(cls: type[S], data: Mapping[str, Any], *, file: str, path: str = "") -> S:
    """Validates a mapping against a section's schema.

    Args:
        cls: The section.
        data: The mapping; its values may be `"auto"`.
        file: What to call the source in messages.
        path: Dotted path of the mapping inside its file.

    Returns:
        The section; `model_fields_set` tells which keys were given.

    Raises:
        ConfigError: One sentence for each thing that is wrong.
    """
    problems: list[str] = []
    section = _build(cls, data, path, problems, root=cls)
    fail(file, problems)
    return section


def fail(file: str, problems: list[str]) -> None:
    """Raises the problems, if any, as one ConfigError."""
    if problems:
        raise ConfigError(f"{file}: " + "; ".join(dict.fromkeys(problems)))


def _build(cls: type[S], data: Any, path: str, problems: list[str], root: type[Section]) -> S:
    if not isinstance(data, Mapping):
        problems.append(f"`{path}` must be an object, got {data!r}")
        return cls.model_construct()
    values: dict[str, Any] = {}
    data = cls.rewrite(data)
    for key, value in data.items():
        name, where = cls.aliases.get(key, key), f"{path}.{key}" if path else str(key)
        if name not in cls.model_fields:
            problems.append(f"unknown key `{where}`{_hint(str(key), cls, path, root)}")
        elif name in values:
            problems.append(f"`{where}` says again what `{name}` says: keep one of the two")
        elif value is not None:  # null is the same as not given
            inner = cls.subsection(name, data)
            inside: list[str] = []
            values[name] = value if inner is None else _build(inner, value, where, inside, root)
            own = verdict(cls.model_fields[name])
            if inside and own.kind == "refused" and switched_on(value, None):
                inside = [f"`{where}` is refused: {own.reason}"]  # what is wrong inside it does not matter then
            problems += inside
    try:
        section = cls(**values)
    except ValidationError as error:
        problems += [_sentence(path, dict(e)) for e in error.errors()]
        return cls.model_construct()
    parsed = {name: getattr(section, name) for name in values}
    problems += [f"`{path}.{key}` {wrong}" if path else f"`{key}` {wrong}" for key, wrong in cls.complaints(parsed)]
    return section


def _sentence(path: str, error: dict[str, Any]) -> str:
    where = ".".join([path, *map(str, error["loc"])]).strip(".")
    if error["type"] == "missing":
        return f"`{where}` is missing"
    wrong = error["ctx"]["error"] if error["type"] == "value_error" else f"{error['msg']}, got {error['input']!r}"
    return f"`{where}` {wrong}"


def _hint(key: str, cls: type[Section], path: str, root: type[Section]) -> str:
    """Points a misspelt or misplaced key to its place."""
    names = [*cls.model_fields, *cls.aliases]
    key = key.strip()
    if key in cls.synonyms:
        return f"; did you mean `{cls.synonyms[key]}`?"
    paths = [known.rpartition(".") for known in key_paths(root)]
    places = {place for place, _, name in paths if name == key} - {path}
    if 1 <= len(places) <= 3:
        return "; it belongs " + " or ".join(f"under `{p}`" if p else "at the top level" for p in sorted(places))
    if close := difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.7):
        return f"; did you mean `{close[0]}`?"
    spellings = {name: f"{place}.{name}" for place, _, name in paths if name != key}
    if len(places) <= 3 and (far := difflib.get_close_matches(key.lower(), spellings, n=1, cutoff=0.8)):
        return f"; did you mean `{spellings[far[0]].removeprefix('.')}`?"
    return f"; known here: {', '.join(names)}" if len(names) <= 16 else "; no known key resembles it"


def key_paths(cls: type[Section], path: str = "") -> Iterator[str]:
    """Every key of a schema that is not refused, as a dotted path; other spellings included."""
    for name in [*cls.model_fields, *cls.aliases]:
        field = cls.model_fields.get(name)
        if field is None or verdict(field).kind != "refused":
            yield path + name
            for inner in sections_of(field.annotation) if field else ():
                yield from key_paths(inner, f"{path}{name}.")


def given(section: Section) -> dict[str, Any]:
    """The keys that a section was given, as plain dictionaries: the inverse of `build`."""
    values = {name: getattr(section, name) for name in sorted(section.model_fields_set)}
    return {name: given(value) if isinstance(value, Section) else value for name, value in values.items()}
