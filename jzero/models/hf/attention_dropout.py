"""Dropout of attention weights, which happens inside of the attention."""

from typing import TypedDict, cast

import jax
from flax import nnx


class Dropping(TypedDict, total=False):
    """The arguments of `jzero.attention` that dropout takes."""

    dropout: float
    dropout_key: jax.Array


def dropping(layer: nnx.Dropout) -> Dropping:
    """What a dropout layer asks of attention: nothing in evaluation, which `Module.eval` switches to.

    Example:
        >>> dropping(nnx.Dropout(0.0))
        {}
    """
    if layer.deterministic or not layer.rate:
        return {}
    return {"dropout": layer.rate, "dropout_key": cast(nnx.RngStream, layer.rngs)()}
