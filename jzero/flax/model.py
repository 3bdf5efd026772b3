"""A model and its loss as two pure functions: all that the rest of jzero sees of either."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax

from jzero.base.types import Batch, ModelState, Params
from jzero.flax.mean import Mean


class Outcome(NamedTuple):
    """What one evaluation of the loss gives: the loss and further metrics, all as `Mean`s, and the new model state."""

    loss: Mean
    metrics: dict[str, Mean]
    model_state: ModelState


class Model(NamedTuple):
    """A model and its loss as pure functions.

    Attributes:
        init: `init(key, batch) -> (params, model_state)`, for use under `jit`; the batch gives shapes only.
        apply: `apply(params, model_state, batch, key, train) -> Outcome`, inside `shard_map` over the data axes.
        aliases: further dotted names of tied parameters -> the name of the leaf.
        types: dotted name of a parameter -> the type of NNX variable that holds it.
    """

    init: Callable[[jax.Array, Batch], tuple[Params, ModelState]]
    apply: Callable[[Params, ModelState, Batch, jax.Array, bool], Outcome]
    aliases: Mapping[str, str] = MappingProxyType({})
    types: Mapping[str, type] = MappingProxyType({})
