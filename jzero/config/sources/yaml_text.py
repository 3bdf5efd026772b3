"""YAML, in which Accelerate's files are written, with the numbers and the strictness of the other formats."""

import re
from collections.abc import Hashable

import yaml

from jzero.base.files import TooDeep, check_depth
from jzero.base.types import Json
from jzero.config.schema.scalars import shown
from jzero.errors import ConfigError

_MOST_CHARACTERS = 2**17
"""How long a text may be: its parser is slow."""

_MOST_NODES = 50_000
"""How many values and keys a text may stand for."""


class _Yaml(yaml.SafeLoader):
    """YAML in which `5e8` is a number, as everywhere else, and in which no key may stand twice."""

    def get_single_node(self) -> yaml.Node | None:
        """The whole text, unless its references to parts of itself make much more of it than is written."""
        node = super().get_single_node()
        if node is not None and _size(node, {}) > _MOST_NODES:
            raise yaml.YAMLError(f"it stands for more than {_MOST_NODES:,} values and keys")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Json]:
        own = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        seen: set[Hashable] = set()
        for at in own:
            key = self.construct_object(at, deep=True)  # type: ignore[no-untyped-call]
            if isinstance(key, Hashable) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"`{key}` is there twice; keep one", at.start_mark)
            seen |= {key} if isinstance(key, Hashable) else set()
        return super().construct_mapping(node, deep)


def _size(node: yaml.Node, known: dict[yaml.Node, int]) -> int:
    """How many values and keys a node stands for, with all that it refers to."""
    if node not in known:
        if node.tag == "tag:yaml.org,2002:int" and len(node.value) > 1000:
            raise yaml.YAMLError("a number has thousands of digits")
        known[node] = 1  # of one that refers to itself, which is an error later on
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = [part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,))]
        known[node] += sum(_size(part, known) for part in parts)
    return known[node]


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
        if len(text) > _MOST_CHARACTERS:
            raise yaml.YAMLError(f"it is longer than {_MOST_CHARACTERS:,} characters")
        value = yaml.load(text, _Yaml)
        check_depth(value)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigError(f"{file}: not valid YAML{where}: {error.problem}") from None
    except (RecursionError, TooDeep):
        raise ConfigError(f"{file}: not valid YAML: lists and mappings lie too deep in each other") from None
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise ConfigError(f"{file}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: must hold one YAML mapping, got {shown(value)}")
    return value
