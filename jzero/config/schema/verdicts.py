"""What happens to each key here: honoured, translated, without effect, or refused.

DeepSpeed's keys steer buckets, hooks and streams that a compiled JAX program does not have. Each field of the schema
therefore carries, beside its default, one of four verdicts with a reason; a field without one has the verdict of the
section around it. A key is only refused when it is switched on: the value that DeepSpeed has by default is always fine.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, cast

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

from jzero.base.types import Json

Kind = Literal["honoured", "translated", "no effect here", "refused"]


class Verdict(NamedTuple):
    """What jzero does with a key, and why (for a refusal: what to do instead)."""

    kind: Kind
    reason: str = ""


class Usual(NamedTuple):
    """Between which numbers a key is usually; others are right, but get a note."""

    low: float
    high: float
    why: str
    """What a number outside of them does."""


class Given(NamedTuple):
    """A key that a configuration sets."""

    path: str
    value: Json
    default: Json
    """DeepSpeed's."""
    verdict: Verdict
    inherited: bool
    """Whether the verdict is the one of the section around."""
    usual: Usual | None


def _declare(kind: Kind):
    def declare(default: Json, reason: str = "", *, usual: Usual | None = None) -> Any:
        return Field(default, description=reason, json_schema_extra={"verdict": kind, "usual": cast(Any, usual)})

    return declare


honoured = _declare("honoured")
translated = _declare("translated")
no_effect = _declare("no effect here")
refused = _declare("refused")


HONOURED = Verdict("honoured")


def verdict(field: FieldInfo, around: Verdict = HONOURED) -> Verdict:
    """The verdict of a field, or the one of the section around it."""
    extra = field.json_schema_extra
    return Verdict(cast(Kind, extra["verdict"]), field.description or "") if isinstance(extra, dict) else around


def given_keys(section: BaseModel, path: str = "", around: Verdict = HONOURED) -> Iterator[Given]:
    """Yields every key that was written in a section, outer keys before inner ones.

    Args:
        section: A validated section of the configuration.
        path: The dotted path of the section, empty for the whole configuration.
        around: The verdict of the enclosing section.
    """
    for name in sorted(section.model_fields_set):
        field, value = type(section).model_fields[name], getattr(section, name)
        own = verdict(field, around)
        key = f"{path}.{name}" if path else name
        extra = field.json_schema_extra
        usual = cast(Usual | None, extra["usual"]) if isinstance(extra, dict) else None
        yield Given(key, value, field.default, own, inherited=own is around, usual=usual)
        if isinstance(value, BaseModel):
            yield from given_keys(value, key, own)


def switched_on(value: Json, default: Json) -> bool:
    """Whether a value asks for something: a section by its `enabled`, anything else by not being the default.

    >>> switched_on({"enabled": False, "opt_level": "O1"}, None), switched_on({"period": 4}, None), switched_on(1, 1)
    (False, True, False)
    """
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        if "enabled" in fields:
            return value.enabled is True  # type: ignore[attr-defined]
        return any(switched_on(getattr(value, name), fields[name].default) for name in value.model_fields_set)
    if isinstance(value, Mapping):
        switches = list(_switches({key: inner for key, inner in value.items() if key != "enabled"}))
        if "enabled" in value:  # what is on as a whole may have all of its parts off
            return value["enabled"] not in (False, "false", "auto") and (any(switches) or not switches)
        return any(switches) if switches else bool(value)
    return value != default and value is not None and value != "auto"


def asks_for_nothing(value: Json) -> bool:
    """Whether a value that no schema knows is switched off: false, nothing, or an object of such values.

    >>> asks_for_nothing({"enabled": False, "size": 4}), asks_for_nothing({"a": False, "b": {}}), asks_for_nothing(0)
    (True, True, False)
    """
    if isinstance(value, Mapping):
        return value.get("enabled") in (False, "false") or all(map(asks_for_nothing, value.values()))
    return value is None or value in (False, "false") if not isinstance(value, int | float) else value is False


def _switches(mapping: Mapping[str, Json]) -> Iterator[bool]:
    for key, value in mapping.items():
        if key == "enabled":
            yield value not in (False, "false", "auto")
        elif isinstance(value, Mapping):
            yield from _switches(value)


def active_keys(section: BaseModel, kind: Kind) -> Iterator[Given]:
    """Yields the keys of a verdict that are switched on; a section that shares one verdict is one key."""
    for key in given_keys(section):
        if key.verdict.kind == kind and not key.inherited and switched_on(key.value, key.default):
            yield key


def show(value: Json) -> str:
    """A value as a message shows it: objects are not spelt out."""
    return "{...}" if isinstance(value, BaseModel | Mapping) else repr(value)
