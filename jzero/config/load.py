"""Reading JSON as DeepSpeed does (Hjson: comments and trailing commas are fine); errors point at line and column."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hjson

from jzero.errors import ConfigError


def read_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a file that holds one JSON or Hjson object.

    Raises:
        ConfigError: The file is missing, is not text, is not JSON (with line and column), or says a key twice.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: cannot read the file: it is not UTF-8 text") from None
    return parse_object(text, str(path))


def parse_object(text: str, file: str) -> dict[str, Any]:
    """Parses the text of a JSON or Hjson object; `file` names it in messages."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) < len(pairs):
            names = [name for name, _ in pairs]
            twice = ", ".join(sorted({f"`{name}`" for name in names if names.count(name) > 1}))
            raise ConfigError(f"{file}: one object has {twice} twice; keep one of them")
        return seen

    try:
        value = hjson.loads(text, object_pairs_hook=unique)
    except hjson.HjsonDecodeError as error:
        line, column, what = _position(text, error)
        raise ConfigError(f"{file}: not valid JSON at line {line}, column {column}: {what}") from None
    if not isinstance(value, Mapping):
        raise ConfigError(f"{file}: must hold one JSON object, got {value!r}")
    return dict(value)


def _position(text: str, error: Any) -> tuple[int, int, str]:
    """Where the text goes wrong: strict JSON sees it earlier, unless what it sees is a comment or a trailing comma."""
    try:
        json.loads(text)
    except json.JSONDecodeError as strict:
        rest = text[strict.pos :].lstrip()
        if rest[:1] not in ("#", "/", "}", "]") and strict.pos < error.pos:
            return strict.lineno, strict.colno, strict.msg
    return error.lineno, error.colno, error.msg
