"""Writes the tables of a page from the schema: `python -m jzero.config.show.reference docs/configuration.md`.

Types are described by the validators themselves, in the words of their error messages, so that the page cannot say
anything else than the program. What stands above the marker in the file is written by hand and is left alone.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from pydantic import PlainValidator
from pydantic.fields import FieldInfo

from jzero.config.config import Config
from jzero.config.resolve.auto import FILLS
from jzero.config.schema.arguments import TrainingArguments
from jzero.config.schema.foreign_arguments import FOREIGN
from jzero.config.schema.section import Section, SectionType, sections_of
from jzero.config.schema.verdicts import HONOURED, Verdict, verdict
from jzero.config.show.display import plain

MARKER = "<!-- What follows is generated from the schema: run `make docs` after a change. -->"


def tables() -> str:
    """Markdown tables of every key: type, default, verdict and what happens, a table for each section.

    Example:
        >>> print(tables().splitlines()[0])
        ## Top level
    """
    return "\n".join([*_section(Config, "", HONOURED), *_training_arguments()])


def _section(cls: SectionType, path: str, around: Verdict) -> Iterator[str]:
    """The heading and table of a section, then those of the sections inside it."""
    yield from (_heading(cls, path), "")
    rows = [(name, field, verdict(field, around)) for name, field in cls.model_fields.items()]
    if around.reason and all(own is around for _, _, own in rows):
        yield from (f"*{around.kind}*: {around.reason}.", "", "| key | type | default |", "|---|---|---|")
        yield from (f"| `{name}` | {type_words(field)} | {_default(field)} |" for name, field, _ in rows)
    else:
        yield from ("| key | type | default | verdict | what happens |", "|---|---|---|---|---|")
        for name, field, own in rows:
            happens = _happens(cls, name, field, own, path)
            yield f"| `{name}` | {type_words(field)} | {_default(field)} | {own.kind} | {happens} |"
    yield ""
    for name, field, own in rows:
        for inner in sections_of(field.annotation):
            yield from _section(inner, f"{path}.{name}" if path else name, own)


def _training_arguments() -> Iterator[str]:
    """The part of a run file that fills `"auto"`."""
    yield from ("## `training_arguments`", "")
    yield from ("| key | type | default | fills, or what happens |", "|---|---|---|---|")
    for name, field in TrainingArguments.model_fields.items():
        own = verdict(field)
        filled = ", ".join(f"`{path}`" for path, row in FILLS.items() if name in row.arguments)
        happens = "; ".join(filter(None, (filled, f"{'refused: ' * (own.kind == 'refused')}{own.reason}")))
        yield f"| `{name}` | {type_words(field)} | {_default(field)} | {happens} |"
    yield from ("", "These have no effect here, and a file that has them gets a note:", "")
    for reason in dict.fromkeys(FOREIGN.values()):
        yield f"- {', '.join(f'`{name}`' for name, why in FOREIGN.items() if why == reason)}: {reason}"
    yield ""


def _heading(cls: SectionType, path: str) -> str:
    """`optimizer.params` has a schema, and so a heading, for each type."""
    if not path:
        return "## Top level"
    what = (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")
    _, _, kind = what.partition(" of ")
    return f"{'#' * min(4, 2 + path.count('.'))} `{path}`" + (f" of {kind}" if path.endswith(".params") else "")


def _happens(cls: SectionType, name: str, field: FieldInfo, own: Verdict, path: str) -> str:
    inner = sections_of(field.annotation)
    words = [own.reason] if own.reason else []
    if inner and not words:
        anchor = f"{path}.{name}".strip(".").replace(".", "")
        words = [f"[below](#{anchor})"] if len(inner) == 1 else ["by type, below"]
    if spellings := [f"`{alias}`" for alias, known in cls.aliases.items() if known == name]:
        words.append(f"also written {', '.join(spellings)}")
    return "; ".join(words).replace("|", "\\|")


def type_words(field: FieldInfo) -> str:
    """What a field takes, in the words of the error that a wrong value gives.

    >>> type_words(Config.model_fields["train_batch_size"]), type_words(Config.model_fields["fp16"])
    ('a whole number at least 1', 'object')
    """
    if sections_of(field.annotation):
        return "object"
    check = validator(field)
    return _refusal(check) if check else str(field.annotation)


def validator(field: FieldInfo) -> PlainValidator | None:
    """What checks the values of a field that is no section.

    >>> validator(Config.model_fields["gradient_clipping"]).func("0.5")
    0.5
    """
    found = [item for part in (field, *_annotated(field.annotation)) for item in part.metadata]
    return next((item for item in found if isinstance(item, PlainValidator)), None)


def _annotated(annotation: object) -> list[FieldInfo]:
    """The parts of a union that carry a validator."""
    return [FieldInfo.from_annotation(part) for part in get_args(annotation) if hasattr(part, "__metadata__")]


def _refusal(check: PlainValidator) -> str:
    for probe in (-1e300, object()):  # the first also brings out a lower bound
        try:
            check.func(probe)  # type: ignore[call-arg]
        except ValueError as error:
            words = str(error).removeprefix("must be ").rpartition(", got ")[0]
            kind, one_of, choices = words.partition("one of ")
            return ", ".join(f'`"{word}"`' for word in choices.split(", ")) if one_of and not kind else words
    return "anything"


def _default(field: FieldInfo) -> str:
    value = field.default
    if field.is_required():
        return "needed"
    if value is None or isinstance(value, Section):
        return ""
    return f"`{plain(value)}`"


def updated(page: str) -> str:
    """The page with its tables as the schema has them now; what is above the marker stays.

    Raises:
        ValueError: the page has no marker.
    """
    head, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER!r}")
    return f"{head}{marker}\n\n{tables()}"


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(updated(file.read_text()))
