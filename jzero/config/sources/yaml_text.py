"""YAML, in which Accelerate's files are written, with the numbers and the strictness of the other formats."""

import re
from collections.abc import Hashable

import yaml

from jzero.base.types import Json
from jzero.config.schema.scalars import shown
from jzero.errors import ConfigError


class _Yaml(yaml.SafeLoader):
    """YAML in which `5e8` is a number, as everywhere else, and in which no key may stand twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Json]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in own]  # type: ignore[no-untyped-call]
        for i, key in enumerate(keys):
            if key in keys[:i]:
                mark = own[i].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"`{key}` is there twice; keep one", mark)
        return super().construct_mapping(node, deep)


# Built at once rather than step by step, a mapping or list that holds itself is an error.
_Yaml.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node, True))  # type: ignore
_Yaml.add_constructor("tag:yaml.org,2002:seq", lambda loader, node: loader.construct_sequence(node, True))  # type: ignore
_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), "-+0123456789"
)


def parse_yaml(text: str, file: str) -> dict[str, Json]:
    """Parses the text of a YAML mapping; `file` names it in messages.

    Raises:
        ConfigError: It is no YAML, or no mapping.
    """
    try:
        value = yaml.load(text, _Yaml)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{file}: not valid YAML{where}: {error.problem}") from None
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: must hold one YAML mapping, got {shown(value)}")
    return value
