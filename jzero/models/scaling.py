"""Transformers of a family at other sizes: width and depth grow together, the heads stay as wide as they are."""

from collections.abc import Mapping

import numpy as np

from jzero.base.types import Json
from jzero.errors import ConfigError
from jzero.models.sizes import SIZES, with_size

FAMILIES = ("gpt", "llama", "vit")
"""The families that can be scaled."""

# Width -> blocks, Brown et al. 2020, table 2.1.
_TABLE = {size["d_model"]: size["n_layer"] for name, size in SIZES.items() if name.startswith("gpt3-")}


def depth(d_model: int) -> int:
    """How many blocks a model of some width has by the table of the GPT-3 paper.

    Between two rows a straight line; outside of them the proportion of width to depth of the nearest row.

    Args:
        d_model: width of the residual stream.

    Example:
        >>> depth(2048), depth(12288), depth(8192), depth(24576)
        (24, 96, 64, 192)
    """
    widths, depths = list(_TABLE), list(_TABLE.values())
    nearest = min(max(d_model, widths[0]), widths[-1])
    blocks = np.interp(nearest, widths, depths) * d_model / nearest
    return max(1, round(float(blocks)))


def scaled(model: Mapping[str, Json], step: int) -> dict[str, Json]:
    """A model of the same family and form, with another width and the depth that belongs to it.

    Heads keep their width, the number of key heads and the width of the feed-forward layer their proportions.

    Args:
        model: a run file's `model` part of one of `FAMILIES`.
        step: the width, in units of the narrowest model that has whole heads.

    Raises:
        ConfigError: the family has no such proportions.

    Example:
        >>> wider = scaled({"size": "llama-2-7b"}, 64)
        >>> wider["d_model"], wider["n_layer"], wider["n_head"], wider["d_ff"]
        (8192, 64, 64, 22016)
    """
    if "hf" in model:
        raise ConfigError(
            f"model.hf {model['hf']!r} is of one size; scale one of {', '.join(FAMILIES)}, such as "
            '{"size": "llama-3-8b"}.'
        )
    sizes = with_size(model)
    if sizes.get("family") not in FAMILIES:
        raise ConfigError(
            f"model.family {sizes.get('family')!r} has no width and depth that could grow together; "
            f"scale one of {', '.join(FAMILIES)}."
        )
    n_head = sizes["n_head"]
    shared = n_head // (sizes.get("n_kv_head") or n_head)
    heads = step * shared
    d_model = heads * sizes["d_model"] // n_head
    wider = {"d_model": d_model, "n_head": heads, "n_layer": depth(d_model)}
    if sizes.get("n_kv_head"):
        wider["n_kv_head"] = step
    if sizes.get("d_ff"):
        wider["d_ff"] = max(1, round(sizes["d_ff"] * d_model / sizes["d_model"] / 64)) * 64
    return {**sizes, **wider}
