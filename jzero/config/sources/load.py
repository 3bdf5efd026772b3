"""Reading configurations in every form that DeepSpeed and Accelerate take; errors point at line and column.

JSON is read as Hjson (comments and trailing commas are fine), as DeepSpeed reads it. A key that one object has twice is
an error, because only one of the two values could hold.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from jzero.base.files import TooDeep, check_depth, read_bytes, why
from jzero.base.types import Json
from jzero.config.schema.scalars import shown
from jzero.config.schema.section import at
from jzero.config.sources.accelerate import read_accelerate
from jzero.errors import ConfigError

MOST_BYTES = 2**20
"""How long a configuration may be, whatever form it has."""


class Read(NamedTuple):
    """A DeepSpeed configuration, what to call it in messages, and notes on how it was read."""

    data: Mapping[str, Json]
    file: str
    notes: list[str]


def read_source(source: str | os.PathLike[str] | Mapping[str, Json], file: str) -> Read:
    """Reads whatever `Config.load` takes.

    Args:
        source: A mapping, a path, or the text of an object.
        file: What to call a source that is no file.

    Raises:
        ConfigError: It cannot be read.
    """
    if not isinstance(source, str | os.PathLike | Mapping):
        raise ConfigError(f"{file}: must be a mapping, a path, or the text of a JSON object, got {shown(source)}")
    if isinstance(source, Mapping):
        data = source
    elif isinstance(source, str) and ("\n" in source or source.lstrip().startswith("{")):
        data = parse_object(source, file)
    else:
        data, file = read_object(source), str(Path(source))
    if "deepspeed_config" not in data:
        return Read(data, file, [])
    accelerate = read_accelerate(data, file)
    if accelerate.deepspeed_file is None:
        return Read(accelerate.deepspeed, file, accelerate.notes)
    beside = Path(file).parent / accelerate.deepspeed_file
    path = beside if os.path.exists(beside) else Path(accelerate.deepspeed_file)
    return Read(accelerate.over(read_object(path)), str(path), accelerate.notes)


def read_object(path: str | os.PathLike[str]) -> dict[str, Json]:
    """Reads a file that holds one JSON or Hjson object, or YAML by its name.

    Raises:
        ConfigError: The file is missing, is not text, is not JSON (with line and column), or says a key twice.
    """
    try:
        text = read_bytes(path, MOST_BYTES).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: cannot read the file: it is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot read the file: {why(error)}") from None
    if Path(path).suffix in (".yaml", ".yml"):
        from jzero.config.sources.yaml_text import parse_yaml  # the parser is only loaded for files that need it

        return parse_yaml(text, str(path))
    return parse_object(text, str(path))


def parse_object(text: str, file: str) -> dict[str, Json]:
    """Parses the text of a JSON or Hjson object; `file` names it in messages."""
    if not text.strip():
        raise ConfigError(f"{file}: is empty; it must hold one JSON object")
    try:
        if len(text) > MOST_BYTES:
            raise ConfigError(f"{file}: not a configuration: it is longer than {MOST_BYTES:,} characters")
        value = _loads(text, file)
        check_depth(value)
    except ConfigError:  # which is a ValueError
        raise
    except (RecursionError, TooDeep):
        raise ConfigError(f"{file}: not a configuration: objects lie too deep in each other") from None
    except ValueError:  # Python reads no whole number of more than 4300 digits
        raise ConfigError(f"{file}: not a configuration: a number has thousands of digits") from None
    if not isinstance(value, _Pairs):
        raise ConfigError(f"{file}: must hold one JSON object, got {shown(value)}")
    if twice := list(_twice(value)):
        raise ConfigError(f"{file}: {' and '.join(twice)} {'is' if len(twice) == 1 else 'are'} there twice; keep one")
    return dict(value)


class _Pairs(dict):
    """An object that knows which of its keys were written more than once."""

    def __init__(self, pairs: list[tuple[str, Json]]):
        super().__init__(pairs)
        self.twice = [name for name, n in Counter(name for name, _ in pairs).items() if n > 1]


def _twice(value: Json, path: str = "") -> Iterator[str]:
    if isinstance(value, _Pairs):
        yield from (f"`{at(path, name)}`" for name in value.twice)
        for name, inner in value.items():
            yield from _twice(inner, at(path, name))
    elif isinstance(value, list):
        for item in value:
            yield from _twice(item, path)


def _loads(text: str, file: str) -> Json:
    """JSON, or else Hjson; of the two errors the one that is nearer to what is wrong."""
    try:
        return json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        strict = error
    import hjson  # only files with comments and the like need it

    try:
        return hjson.loads(text, object_pairs_hook=_Pairs)
    except hjson.HjsonDecodeError as error:
        # Strict JSON sees it earlier, unless what it sees is a comment or a trailing comma.
        sooner = text[strict.pos :].lstrip()[:1] not in ("#", "/", "}", "]") and strict.pos < error.pos
        near = strict if sooner else error
        raise ConfigError(f"{file}: not valid JSON at line {near.lineno}, column {near.colno}: {near.msg}") from None
