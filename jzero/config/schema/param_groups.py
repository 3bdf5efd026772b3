"""`jzero.param_groups`: other weight decay and learning rates for the parameters whose names match."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import PlainValidator

from jzero.base.types import Json
from jzero.config.schema.building import build
from jzero.config.schema.scalars import Rate, Text
from jzero.config.schema.section import Section
from jzero.config.schema.verdicts import honoured
from jzero.errors import ConfigError


class ParamGroup(Section):
    """One entry of `jzero.param_groups`.

    Example:
        >>> ParamGroup(match="bias|norm|scale", weight_decay=0.0).lr_multiplier
        1.0
    """

    match: Text = honoured(None, "a regular expression that is found in the parameters' dotted names")
    weight_decay: Rate | None = honoured(None, "in place of the optimizer's; the optimizer's when not given")
    lr_multiplier: Rate = honoured(1.0, "factor on the learning rate")

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """An entry says which parameters it is for, and what is different for them."""
        if values.get("match") is None:
            yield "match", "is missing: a regular expression for the names of parameters"
            return
        try:
            re.compile(values["match"])
        except re.error as error:
            yield "match", f"= {values['match']!r} is no regular expression: {error}"
        if len(values) == 1:
            yield "match", f"= {values['match']!r} changes nothing: add `weight_decay` or `lr_multiplier`"


def _groups(value: Json) -> tuple[ParamGroup, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"must be a list of objects, got {value!r}")
    groups = []
    for i, item in enumerate(value):
        if not isinstance(item, Mapping | ParamGroup):
            raise ValueError(f"must be a list of objects, got {item!r} as entry {i}")
        try:
            group = item if isinstance(item, ParamGroup) else build(ParamGroup, item, file=f"entry {i}")
        except ConfigError as error:
            raise ValueError(f"is wrong in {error}") from None
        groups.append(group)
    return tuple(groups)


ParamGroups = Annotated[tuple[ParamGroup, ...], PlainValidator(_groups)]
