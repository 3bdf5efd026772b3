"""From a mapping to a typed, frozen section: an unknown key or a wrong value becomes one sentence.

`build` walks the mapping beside the schema, so that a message can name the full path of a key as the file writes it,
the nearest known name, and the section where a misplaced key belongs. pydantic validates the values.
"""

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pydantic import ValidationError

from jzero.base.types import Json
from jzero.config.schema.hints import Unknown, hint, note, note_at_once
from jzero.config.schema.scalars import shown
from jzero.config.schema.section import Order, S, Section, SectionType, Trace, at, fail
from jzero.config.schema.verdicts import HONOURED, Verdict, switched_on, verdict
from jzero.errors import ConfigError

MOST_HINTS = 30
"""Unknown keys beyond these are only counted: each is compared with all that there are."""


class _Place(NamedTuple):
    """Where a section stands: by the schema's names, by the file's, and what becomes of it."""

    path: str
    written: str
    verdict: Verdict


class _Walk(NamedTuple):
    """What stays the same on the way through a file."""

    root: SectionType
    file: Mapping[str, Json]
    trace: Trace
    unknown: list[str]


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
    walk = _Walk(cls, data, trace, [])
    try:
        section = _build(cls, data, _Place("", "", HONOURED), walk)
    except RecursionError:
        raise ConfigError(f"{file}: not a configuration: objects lie too deep in each other") from None
    if (more := len(walk.unknown) - MOST_HINTS) > 0:
        trace.problems.append(f"there are {more} more unknown keys")
    fail(file, trace.problems)
    return section


def _build(cls: type[S], data: Json, place: _Place, walk: _Walk) -> S:
    trace = walk.trace
    if not isinstance(data, Mapping):
        switch = isinstance(data, bool) and "enabled" in cls.model_fields
        advice = f'; write {{"enabled": {str(data).lower()}}}' if switch else ""
        trace.problems.append(f"`{place.written}` must be an object, got {shown(data)}{advice}")
        return cls.model_construct()
    data = _without_blanks(cls, data, place, trace)
    mapped = list(cls.modernise(data))
    given_keys, data = set(data), cls.rewrite(data)
    trace.written.update({at(place.path, m.key): at(place.written, m.written) for m in mapped if m.written})
    values: dict[str, Json] = {}
    written: dict[str, tuple[str, Json]] = {}
    for key, value in data.items():
        name, where = cls.aliases.get(key, key), at(place.written, key)
        if name not in cls.model_fields:
            _unknown(Unknown(str(key).strip(), value, data, cls, place.path, place.verdict, *walk[:2]), where, walk)
        elif name in values:
            trace.problems.append(f"`{where}` says again what `{written[name][0]}` says: keep one of the two")
        elif value is not None:  # null is the same as not given
            canonical = at(place.path, name)
            if key in given_keys:
                trace.origins[canonical] = "given" if key == name else f"given as {key}"
            if key in cls.deprecated:
                trace.notes.append(f"`{where}` is read as `{canonical}`")
            if key != name:
                trace.written.setdefault(canonical, where)
            values[name], written[name] = _inner(cls, name, value, where, data, place, walk), (where, value)
    try:
        section = cls(**values)
    except ValidationError as error:
        trace.problems += [_sentence(place, trace, dict(e)) for e in error.errors()]
        return cls.model_construct()
    _check(cls, {name: getattr(section, name) for name in values}, written, place, trace)
    for key, value, old, was in mapped:
        trace.origins[at(place.path, key)] = f"given as {old}" if old else str(was)
        if not old:
            continue
        before, now = (json.dumps(x, default=str) for x in (was, value))
        trace.notes.append(f"`{at(place.written, old)}` = {before} is read as `{at(place.path, key)}` = {now}")
    return section


def _check(
    cls: SectionType, parsed: Mapping[str, Json], written: Mapping[str, tuple[str, Json]], place: _Place, trace: Trace
) -> None:
    """The rules between the keys of a section, and the notes on how its values were read."""
    complaints = [*((order.low, wrong) for order, wrong in out_of_order(cls, parsed) if not order.note)]
    for key, wrong in [*complaints, *cls.complaints(parsed)]:
        trace.problems.append(f"`{trace.name(at(place.path, key))}` {wrong}")
    trace.notes += [said for name, raw in written.items() if (said := _reading(*raw, parsed[name]))]


def out_of_order(cls: SectionType, values: Mapping[str, Json]) -> Iterator[tuple[Order, str]]:
    """The pairs of keys of a section whose numbers are the wrong way round, with what to say of the lower one.

    Args:
        cls: the section.
        values: the keys that it was given; defaults hold for the others, but one of a pair must be there.
    """
    for order in cls.in_order:
        low, high = (values.get(name, cls.model_fields[name].default) for name in (order.low, order.high))
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (low, high))
        if numbers and low > high and (order.low in values or order.high in values):
            default = " (the default)"
            ends = [default * (order.low not in values), default * (order.high not in values)]
            end = order.note or ("swap the two" if not any(ends) else "give both")
            yield order, f"= {low:.9g}{ends[0]} is above `{order.high}` = {high:.9g}{ends[1]}: {end}"


def _unknown(key: Unknown, where: str, walk: _Walk) -> None:
    """Files an unknown key under notes or problems."""
    if reason := note_at_once(key):
        walk.trace.notes.append(f"`{where}` {reason}")
        return
    walk.unknown.append(where)
    if len(walk.unknown) > MOST_HINTS:
        return
    if reason := note(key):
        walk.unknown.pop()
        walk.trace.notes.append(f"`{where}` {reason}")
    else:
        walk.trace.problems.append(f"unknown key `{where}`{hint(key)}")


def _without_blanks(cls: type[Section], data: Mapping[str, Json], place: _Place, trace: Trace) -> dict[str, Json]:
    """The mapping, with a blank around the name of a known key taken away."""
    cleaned: dict[str, Json] = {}
    for key, value in data.items():
        name = str(key).strip()
        if name != key and name not in data and cls.aliases.get(name, name) in cls.model_fields:
            trace.notes.append(f"`{at(place.written, key)}` is read as `{at(place.written, name)}`")
            key = name
        cleaned[key] = value
    return cleaned


def _inner(
    cls: type[Section], name: str, value: Json, where: str, data: Mapping[str, Json], place: _Place, walk: _Walk
) -> Json:
    """A value, or the section it describes."""
    inner = cls.subsection(name, data)
    if inner is None:
        return value
    problems = walk.trace.problems
    before, own = len(problems), verdict(cls.model_fields[name])
    section = _build(inner, value, _Place(at(place.path, name), where, own), walk)
    if len(problems) > before and own.kind == "refused" and switched_on(value, None):
        problems[before:] = [f"`{where}` is refused: {own.reason}"]  # what is wrong inside does not matter then
    return section


def _reading(where: str, raw: Json, parsed: Json) -> str | None:
    """The note on a value that was not written as what it is."""
    if isinstance(raw, str) and isinstance(parsed, int | float):
        return f"`{where}` = {shown(raw)} in quotes is read as {json.dumps(parsed)}"
    if isinstance(parsed, tuple) and any(type(a) is str and a != b for a, b in zip(raw, parsed, strict=False)):
        return f"`{where}` = {shown(raw)} in quotes is read as {json.dumps(parsed)}"
    if isinstance(raw, str) and isinstance(parsed, str) and raw.lower() != parsed.lower():
        return f"`{where}` = {shown(raw)} is read as {parsed!r}"
    if isinstance(raw, float) and isinstance(parsed, int) and raw != parsed:
        return f"`{where}` = {raw!r} is read as {parsed}"
    return None


def _sentence(place: _Place, trace: Trace, error: dict[str, Json]) -> str:
    first, *rest = map(str, error["loc"])
    where = ".".join([trace.name(at(place.path, first)), *rest])
    if error["type"] == "missing":
        return f"`{where}` is missing"
    wrong = error["ctx"]["error"] if error["type"] == "value_error" else f"{error['msg']}, got {shown(error['input'])}"
    return f"`{where}` {wrong}"
