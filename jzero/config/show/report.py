"""Every key of a configuration, one line each: its value, where the value comes from, and what becomes of the key."""

from collections.abc import Iterator
from typing import NamedTuple

from jzero.base.types import Json
from jzero.config.config import Config
from jzero.config.resolve.batch import NAMES
from jzero.config.schema.notes import unread
from jzero.config.schema.scalars import is_auto
from jzero.config.schema.section import Section, at
from jzero.config.schema.verdicts import HONOURED, Verdict, verdict


class Line(NamedTuple):
    """A key of the schema.

    Attributes:
        path: dotted.
        value: what holds; the `Section` itself for a section, None for a section that is absent.
        origin: "given", "given as cpu_offload", "default", "auto from learning_rate", "derived from elasticity and 8
            data shards", or "open" where only `Config.resolve` will know.
        verdict: what jzero does with the key, and why.
    """

    path: str
    value: Json
    origin: str
    verdict: Verdict


def lines(config: Config, *, defaults: bool = True) -> list[Line]:
    """Lists every key of the schema; sections come before their keys, and an absent section is one line.

    Args:
        config: as loaded or resolved.
        defaults: whether to list keys that nobody has set.

    Example:
        >>> config = Config.load({"train_batch_size": 16, "zero_optimization": {"stage": 3}}).resolve(world=8)
        >>> for line in lines(config, defaults=False):
        ...     print(line.path, line.origin)
        train_batch_size given
        train_micro_batch_size_per_gpu derived from train_batch_size, gradient_accumulation_steps and 8 data shards
        zero_optimization given
        zero_optimization.stage given
    """
    found = list(_lines(config, config, "", HONOURED))
    kept = {line.path for line in found if line.origin != "default"}
    return [line for line in found if defaults or line.path in kept]


def _lines(config: Config, section: Section, path: str, around: Verdict) -> Iterator[Line]:
    for name, field in type(section).model_fields.items():
        value, where, own = getattr(section, name), at(path, name), verdict(field, around)
        if reason := unread(config, where):
            own = Verdict("no effect here", reason)
        yield Line(where, value, _origin(config, section, name, where, value), own)
        if isinstance(value, Section):
            yield from _lines(config, value, where, own)


def _origin(config: Config, section: Section, name: str, path: str, value: Json) -> str:
    if (is_auto(value) and name in section.model_fields_set) or (value is None and path in NAMES):
        return "open"
    origins = config.origins
    return origins.get(path, "default") if origins else "given" if name in section.model_fields_set else "default"
