"""From a mapping to a typed, frozen section: an unknown key or a wrong value becomes one sentence.

`build` walks the mapping beside the schema, so that a message can name the full path of a key, the nearest known name,
and the section where a misplaced key belongs. pydantic validates the values.
"""

import difflib
import json
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from jzero.base.types import Json
from jzero.config.schema.scalars import shown
from jzero.config.schema.verdicts import HONOURED, Verdict, switched_on, verdict
from jzero.errors import ConfigError


class Section(BaseModel):
    """A JSON object of the configuration."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    aliases: ClassVar[Mapping[str, str]] = {}
    """Other spellings of a key, and the field they stand for."""

    deprecated: ClassVar[frozenset[str]] = frozenset()
    """The aliases that are no longer to be written, which is worth a note."""

    synonyms: ClassVar[Mapping[str, str]] = {}
    """What people write for a key that is called otherwise: only to point them to it."""

    foreign: ClassVar[Mapping[str, str]] = {}
    """Keys of DeepSpeed's past and of other programs that files hold, and why they have no effect."""

    unchecked: ClassVar[bool] = False
    """DeepSpeed looks into such a section for the keys it knows, and never says that there are others."""

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


S = TypeVar("S", bound=Section)
SectionType = type[Section]


class Mapped(NamedTuple):
    """A key that is read as another one: the dotted key inside the section and its value, and what was written."""

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
    """

    origins: dict[str, str] = field(default_factory=dict, compare=False)
    notes: list[str] = field(default_factory=list, compare=False)
    problems: list[str] = field(default_factory=list, compare=False)


def sections_of(annotation: object) -> list[type[Section]]:
    """The section types named by a field's annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        return [s for part in get_args(annotation) for s in sections_of(part)]
    return []


def build(cls: type[S], data: Mapping[str, Json], *, file: str, trace: Trace | None = None) -> S:
    """Validates a mapping against a section's schema.

    Args:
        cls: The section.
        data: The mapping; its values may be `"auto"`.
        file: What to call the source in messages.
        trace: Where to note down origins and notes.

    Returns:
        The section; `model_fields_set` tells which keys were given.

    Raises:
        ConfigError: One sentence for each thing that is wrong.
    """
    trace = trace or Trace()
    try:
        section = _build(cls, data, "", trace, root=cls)
    except RecursionError:
        raise ConfigError(f"{file}: not a configuration: objects lie too deep in each other") from None
    fail(file, trace.problems)
    return section


def fail(file: str, problems: list[str]) -> None:
    """Raises the problems, if any, as one ConfigError."""
    if problems:
        raise ConfigError(f"{file}: " + "; ".join(dict.fromkeys(problems)))


def _build(cls: type[S], data: Json, path: str, trace: Trace, root: type[Section], around: Verdict = HONOURED) -> S:
    if not isinstance(data, Mapping):
        advice = (
            f'; write {{"enabled": {str(data).lower()}}}'
            if isinstance(data, bool) and "enabled" in cls.model_fields
            else ""
        )
        trace.problems.append(f"`{path}` must be an object, got {shown(data)}{advice}")
        return cls.model_construct()
    data = _without_blanks(cls, data, path, trace)
    mapped = list(cls.modernise(data))
    given_keys, data = set(data), cls.rewrite(data)
    values: dict[str, Json] = {}
    written: dict[str, tuple[str, Json]] = {}
    for key, value in data.items():
        name, where = cls.aliases.get(key, key), at(path, key)
        if name not in cls.model_fields:
            if reason := _only_noted(str(key), value, data, cls, path, root, around):
                trace.notes.append(f"`{where}` {reason}")
            else:
                trace.problems.append(f"unknown key `{where}`{_hint(str(key), data, cls, path, root)}")
        elif name in values:
            trace.problems.append(f"`{where}` says again what `{written[name][0]}` says: keep one of the two")
        elif value is not None:  # null is the same as not given
            canonical = at(path, name)
            if key in given_keys:
                trace.origins[canonical] = "given" if key == name else f"given as {key}"
            if key in cls.deprecated:
                trace.notes.append(f"`{where}` is read as `{canonical}`")
            values[name], written[name] = _inner(cls, name, value, canonical, data, trace, root), (where, value)
    try:
        section = cls(**values)
    except ValidationError as error:
        trace.problems += [_sentence(path, dict(e)) for e in error.errors()]
        return cls.model_construct()
    parsed = {name: getattr(section, name) for name in values}
    trace.problems += [f"`{at(path, key)}` {wrong}" for key, wrong in cls.complaints(parsed)]
    trace.notes += [note for name, raw in written.items() if (note := _reading(*raw, parsed[name]))]
    for key, value, old, was in mapped:
        trace.origins[at(path, key)] = f"given as {old}"
        before, now = (json.dumps(x, default=str) for x in (was, value))
        trace.notes.append(f"`{at(path, old)}` = {before} is read as `{at(path, key)}` = {now}")
    return section


def at(path: str, key: Json) -> str:
    """The dotted path of a key inside a section."""
    return f"{path}.{key}" if path else str(key)


def _without_blanks(cls: type[Section], data: Mapping[str, Json], path: str, trace: Trace) -> dict[str, Json]:
    """The mapping, with a blank around the name of a known key taken away."""
    cleaned: dict[str, Json] = {}
    for key, value in data.items():
        name = str(key).strip()
        if name != key and name not in data and cls.aliases.get(name, name) in cls.model_fields:
            trace.notes.append(f"`{at(path, key)}` is read as `{at(path, name)}`")
            key = name
        cleaned[key] = value
    return cleaned


def _inner(
    cls: type[Section], name: str, value: Json, path: str, data: Json, trace: Trace, root: type[Section]
) -> Json:
    """A value, or the section it describes."""
    inner = cls.subsection(name, data)
    if inner is None:
        return value
    before, own = len(trace.problems), verdict(cls.model_fields[name])
    section = _build(inner, value, path, trace, root, own)
    if len(trace.problems) > before and own.kind == "refused" and switched_on(value, None):
        trace.problems[before:] = [f"`{path}` is refused: {own.reason}"]  # what is wrong inside does not matter then
    return section


def _reading(where: str, raw: Json, parsed: Json) -> str | None:
    """The note on a value that was not written as what it is."""
    if isinstance(raw, str) and isinstance(parsed, int | float):
        return f"`{where}` = {raw!r} in quotes is read as {json.dumps(parsed)}"
    if isinstance(parsed, tuple) and any(type(a) is str and a != b for a, b in zip(raw, parsed, strict=False)):
        return f"`{where}` = {shown(raw)} in quotes is read as {json.dumps(parsed)}"
    if isinstance(raw, str) and isinstance(parsed, str) and raw.lower() != parsed.lower():
        return f"`{where}` = {raw!r} is read as {parsed!r}"
    if isinstance(raw, float) and isinstance(parsed, int) and raw != parsed:
        return f"`{where}` = {raw!r} is read as {parsed}"
    return None


def _sentence(path: str, error: dict[str, Json]) -> str:
    where = ".".join([path, *map(str, error["loc"])]).strip(".")
    if error["type"] == "missing":
        return f"`{where}` is missing"
    wrong = error["ctx"]["error"] if error["type"] == "value_error" else f"{error['msg']}, got {shown(error['input'])}"
    return f"`{where}` {wrong}"


def _only_noted(
    key: str, value: Json, data: Json, cls: type[Section], path: str, root: type[Section], around: Verdict
) -> str | None:
    """Why an unknown key is no error: DeepSpeed trains with it, and it is no misspelt key that means something."""
    if around.kind in ("no effect here", "refused") and data.get("enabled") in (False, "false"):
        return f"is no known key, and has no effect because `{path}.enabled` is false"
    if key in cls.foreign:
        return f"has no effect here: {cls.foreign[key]}"
    if not path and (key.startswith(("_", "/", "#", "$")) or key in ("comment", "comments", "description")):
        return "is read as a comment"
    hint = _hint(key, data, cls, path, root)
    off = value is False or not switched_on(value, None)
    if not path and off and (value is None or hint == _NOTHING_LIKE_IT):
        return "is no known key, and asks for nothing"
    close = difflib.get_close_matches(key.lower(), cls.model_fields, n=1, cutoff=0.7)
    kinds = [verdict(cls.model_fields[name], around).kind for name in close]
    places = [known for known in key_paths(root, inside=("honoured",)) if known.rpartition(".")[2] == key]
    if cls.unchecked and not 1 <= len(places) <= 3 and kinds in ([], ["no effect here"]):
        return "is no known key, and has no effect" + (f"; did you mean `{close[0]}`?" if close else "")
    return None


_NOTHING_LIKE_IT = "; no known key resembles it"


def _hint(key: str, given: Collection[str], cls: type[Section], path: str, root: type[Section]) -> str:
    """Points a misspelt or misplaced key to its place."""
    names = [*cls.model_fields, *cls.aliases]
    key = key.strip()
    if meant := cls.synonyms.get(key):
        return f"; `{meant}` says it already: keep that one" if meant in given else f"; did you mean `{meant}`?"
    for kinds in (("honoured",), ("honoured", "translated", "no effect here")):
        paths = [known.rpartition(".") for known in key_paths(root, inside=kinds)]
        if places := {place for place, _, name in paths if name == key} - {path}:
            break
    if 1 <= len(places) <= 3:
        return "; it belongs " + " or ".join(f"under `{p}`" if p else "at the top level" for p in sorted(places))
    if close := difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.7):
        return f"; did you mean `{close[0]}`?"
    spellings = {name: f"{place}.{name}" for place, _, name in paths if path != place and name != key and len(key) > 5}
    if len(places) <= 3 and (far := difflib.get_close_matches(key.lower(), spellings, n=1, cutoff=0.8)):
        return f"; did you mean `{spellings[far[0]].removeprefix('.')}`?"
    return f"; known here: {', '.join(names)}" if len(names) <= 12 else _NOTHING_LIKE_IT


def key_paths(
    cls: type[Section], path: str = "", *, inside: Collection[str] = ("honoured", "translated", "no effect here")
) -> Iterator[str]:
    """Every key of a schema that is not refused, `inside` sections of these verdicts, dotted and in all spellings."""
    for name in [*cls.model_fields, *cls.aliases]:
        field = cls.model_fields.get(name)
        if field is None or verdict(field).kind != "refused":
            yield path + name
            for inner in sections_of(field.annotation) if field and verdict(field).kind in inside else ():
                yield from key_paths(inner, f"{path}{name}.", inside=inside)


def given(section: Section) -> dict[str, Json]:
    """The keys that a section was given, as plain dictionaries: the inverse of `build`."""
    values = {name: getattr(section, name) for name in sorted(section.model_fields_set)}
    return {name: given(value) if isinstance(value, Section) else value for name, value in values.items()}
