"""A key that no schema knows: whether it can stay with a note, and which key its writer may have meant.

A hint never sends anyone from one refusal into the next: it names no key that the file has already, none that is
refused itself, and in the parameters of an optimizer or schedule only what the type in the file has.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from jzero.base.types import Json
from jzero.config.schema.section import SectionType, at, sections_of
from jzero.config.schema.verdicts import Verdict, asks_for_nothing, switched_on, verdict


class Unknown(NamedTuple):
    """A key, and where it stands.

    Attributes:
        key: without the blanks around it.
        value: what it has.
        siblings: the object that it stands in.
        schema: of that object.
        path: dotted, of that object.
        around: what becomes of that object.
        root: the schema of the whole configuration.
        file: the whole configuration.
    """

    key: str
    value: Json
    siblings: Mapping[str, Json]
    schema: SectionType
    path: str
    around: Verdict
    root: SectionType
    file: Mapping[str, Json]


_NOTHING_LIKE_IT = "; no known key resembles it: remove it"


def note_at_once(unknown: Unknown) -> str | None:
    """Why an unknown key is no error, where that needs no look at the keys there are."""
    key, path, around = unknown.key, unknown.path, unknown.around
    if around.kind in ("no effect here", "refused") and unknown.siblings.get("enabled") in (False, "false"):
        return f"is no known key, and has no effect because `{path}.enabled` is false"
    if key in unknown.schema.foreign:
        return f"has no effect here: {unknown.schema.foreign[key]}"
    if not path and (key.startswith(("_", "/", "#", "$")) or key in ("comment", "comments", "description")):
        return "is read as a comment"
    return None


def note(unknown: Unknown) -> str | None:
    """Why another one is no error: DeepSpeed trains with it, and it is no misspelt key that means something."""
    key, value, cls = unknown.key, unknown.value, unknown.schema
    section = isinstance(value, Mapping) and asks_for_nothing(value)
    off = section or value is False or not switched_on(value, None)
    if section or (not unknown.path and off):
        meant = hint(unknown)
        if section or value is None or meant == _NOTHING_LIKE_IT:
            return "is no known key, and asks for nothing" + (meant if meant.startswith("; did you mean") else "")
    close = difflib.get_close_matches(key.lower(), cls.model_fields, n=1, cutoff=0.7)
    kinds = [verdict(cls.model_fields[name], unknown.around).kind for name in close]
    places = [known for known in key_paths(unknown.root, inside=("honoured",)) if known.rpartition(".")[2] == key]
    if cls.unchecked and not 1 <= len(places) <= 3 and kinds in ([], ["no effect here"]):
        said = close and close[0] not in unknown.siblings
        return "is no known key, and has no effect" + (f"; did you mean `{close[0]}`?" if said else "")
    return None


def hint(unknown: Unknown) -> str:
    """What follows the name of an unknown key in the message: where it belongs, what was meant, or what to do."""
    key, cls, path, file = unknown.key, unknown.schema, unknown.path, unknown.file
    if key in cls.needless:
        return f": remove it, as {cls.needless[key]}"
    kinds = ("honoured", "translated", "no effect here")
    everywhere = list(key_paths(unknown.root, inside=kinds, data=file))
    if meant := cls.synonyms.get(key):
        whole = meant if meant in everywhere else at(path, meant)
        if meant in cls.model_fields and meant in unknown.siblings:
            return f"; `{meant}` says it already: remove `{key}`"
        if whole in everywhere and (advice := _there(unknown, whole)):
            return advice
        if whole in everywhere:
            return f"; did you mean `{meant}`?"
    if advice := _elsewhere(unknown, everywhere):
        return advice
    if advice := _close_by(unknown):
        return advice
    if advice := _far(unknown, everywhere):
        return advice
    names = [name for name in [*cls.model_fields, *cls.aliases] if _offered(cls, name)]
    return f"; known here: {', '.join(names)}; or remove it" if 0 < len(names) <= 12 else _NOTHING_LIKE_IT


def _elsewhere(unknown: Unknown, everywhere: list[str]) -> str | None:
    """Where a key belongs that other sections have."""
    honoured = key_paths(unknown.root, inside=("honoured",), data=unknown.file)
    for paths in (honoured, everywhere):
        places = {place for place, _, name in (p.rpartition(".") for p in paths) if name == unknown.key}
        if places := places - {unknown.path}:
            break
    if not 1 <= len(places) <= 3:
        return None
    there = [advice for place in sorted(places) if (advice := _there(unknown, at(place, unknown.key)))]
    if there:
        return there[0]
    return "; it belongs " + " or ".join(f"under `{p}`" if p else "at the top level" for p in sorted(places))


def _close_by(unknown: Unknown) -> str | None:
    """A key of the same section that looks like it."""
    cls = unknown.schema
    names = [*cls.model_fields, *cls.aliases]
    if not (close := difflib.get_close_matches(unknown.key.lower(), names, n=1, cutoff=0.7)):
        return None
    name = cls.aliases.get(close[0], close[0])
    if not _offered(cls, close[0]):
        return f"; remove it: `{close[0]}`, which it resembles, is refused too"
    if written := _written(unknown.root, unknown.file, at(unknown.path, name)):
        return f"; `{written}`, which it resembles, is there already: remove one of them"
    return f"; did you mean `{close[0]}`?"


def _far(unknown: Unknown, everywhere: list[str]) -> str | None:
    """A key of another section that looks like it."""
    split = (known.rpartition(".") for known in everywhere)
    spellings = {name: f"{place}.{name}".removeprefix(".") for place, _, name in split if place != unknown.path}
    spellings = {name: path for name, path in spellings.items() if len(unknown.key) > 5 and name != unknown.key}
    if not (far := difflib.get_close_matches(unknown.key.lower(), spellings, n=1, cutoff=0.8)):
        return None
    return _there(unknown, spellings[far[0]]) or f"; did you mean `{spellings[far[0]]}`?"


def _there(unknown: Unknown, path: str) -> str | None:
    """What to do with the unknown key where the file has the known one."""
    written = _written(unknown.root, unknown.file, path)
    return written and f"; `{written}` says it already: remove `{at(unknown.path, unknown.key)}`"


def _written(cls: SectionType, file: Json, path: str) -> str | None:
    """A dotted key as the file writes it, or None where the file does not have it."""
    name, _, rest = path.partition(".")
    name = cls.aliases.get(name, name)
    keys = file if isinstance(file, Mapping) else {}
    key = next((k for k in keys if cls.aliases.get(k, k) == name and keys[k] is not None), None)
    if key is None:
        return None
    inner = cls.subsection(name, keys)
    if not rest:
        return key
    below = _written(inner, keys[key], rest) if inner else None
    return f"{key}.{below}" if below else None


def _offered(cls: SectionType, name: str) -> bool:
    """Whether a key may be named in a hint."""
    field = cls.model_fields.get(cls.aliases.get(name, name))
    return field is not None and verdict(field).kind != "refused"


def key_paths(
    cls: SectionType,
    path: str = "",
    *,
    inside: Collection[str] = ("honoured", "translated", "no effect here"),
    data: Json = None,
) -> Iterator[str]:
    """Every key of a schema that is not refused, `inside` sections of these verdicts, dotted and in all spellings.

    Args:
        cls: the schema.
        path: with which all of them begin.
        inside: the verdicts.
        data: what a file has there; a section whose schema depends on its type is then of the type in the file.
    """
    for name in [*cls.model_fields, *cls.aliases]:
        field = cls.model_fields.get(name)
        if field is None or verdict(field).kind != "refused":
            yield path + name
            inner = sections_of(field.annotation) if field and verdict(field).kind in inside else []
            if len(inner) > 1 and isinstance(data, Mapping) and (typed := cls.subsection(name, data)):
                inner = [typed]
            for section in inner:
                here = data.get(name) if isinstance(data, Mapping) else None
                yield from key_paths(section, f"{path}{name}.", inside=inside, data=here)
