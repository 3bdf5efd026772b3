"""`optimizer`: the types that jzero builds, and what to use instead of the others."""

import difflib
from collections.abc import Iterator, Mapping

from jzero.base.types import Json
from jzero.config.schema import optimizer_params as p
from jzero.config.schema.scalars import Anything, Switch, Text, shown
from jzero.config.schema.section import Section, SectionType
from jzero.config.schema.verdicts import honoured, no_effect

PARAMS: dict[str, SectionType] = {
    "Adam": p.AdamParams,
    "AdamW": p.AdamParams,
    "Lamb": p.LambParams,
    "Lion": p.LionParams,
    "Muon": p.MuonParams,
    "SGD": p.SGDParams,
    "Adagrad": p.AdagradParams,
    "Adadelta": p.AdadeltaParams,
    "Adamax": p.AdamaxParams,
    "NAdam": p.NAdamParams,
    "RAdam": p.RAdamParams,
    "RMSprop": p.RMSpropParams,
    "Rprop": p.RpropParams,
}
"""The types, as they are usually written; any case is right."""

_MUP = ", with an `lr_multiplier` in `jzero.param_groups` for what muP scales"
INSTEAD: dict[str, str] = {
    "onebitadam": "AdamW",
    "zerooneadam": "AdamW",
    "onebitlamb": "Lamb",
    "muadam": "Adam" + _MUP,
    "muadamw": "AdamW" + _MUP,
    "musgd": "SGD" + _MUP,
    "asgd": "SGD",
    "sparseadam": "Adam",
    "lbfgs": "AdamW",
    "fusedadam": "Adam",
    "deepspeedcpuadam": "Adam, with `zero_optimization.offload_optimizer` for its state in host memory",
    "adamw8bit": "AdamW",
    "adam8bit": "Adam",
    "pagedadamw8bit": "AdamW",
    "adafactor": "AdamW, or pass optax.adafactor to jzero.initialize",
}

_BY_NAME = {name.lower(): schema for name, schema in PARAMS.items()}
_NAMES = f"{', '.join(list(PARAMS)[:-1])} or {list(PARAMS)[-1]}"


class OptimizerConfig(Section):
    """`optimizer`."""

    type: Text = honoured("AdamW", f"{_NAMES}, in any case; Adam is AdamW unless adam_w_mode is false")
    params: (
        p.AdamParams
        | p.LambParams
        | p.LionParams
        | p.MuonParams
        | p.SGDParams
        | p.AdagradParams
        | p.AdadeltaParams
        | p.AdamaxParams
        | p.NAdamParams
        | p.RAdamParams
        | p.RMSpropParams
        | p.RpropParams
        | Anything
    ) = honoured(None, "of the type, by torch's and DeepSpeed's names")
    legacy_fusion: Switch = no_effect(False, p.FUSED)

    @classmethod
    def subsection(cls, name: str, data: Mapping[str, Json]) -> SectionType | None:
        """The parameters' schema follows from the type."""
        return _BY_NAME.get(str(data.get("type")).lower()) if name == "params" else None

    @classmethod
    def rewrite(cls, data: Mapping[str, Json]) -> Mapping[str, Json]:
        """Missing parameters are the defaults of the type."""
        return {**data, "params": {} if data.get("params") is None else data["params"]}

    @classmethod
    def complaints(cls, values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
        """Names the types that exist, and the nearest one for those that do not exist here."""
        kind = values.get("type")
        if kind is None:
            yield "type", f"is missing: one of {', '.join(PARAMS)}"
        elif kind.lower() not in _BY_NAME:
            close = difflib.get_close_matches(kind.lower(), _BY_NAME, n=1)
            nearest = next((name for name in PARAMS if [name.lower()] == close), None)
            advice = INSTEAD.get(kind.lower()) or nearest or f"{_NAMES}, or pass an optax optimizer to jzero.initialize"
            yield "type", f"= {shown(kind)} is refused: use {advice}"
