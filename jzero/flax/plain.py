"""A model without Flax as two pure functions: an object that makes parameters, and a loss that does the rest."""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp

from jzero.base.types import Batch, Params
from jzero.errors import ModelError
from jzero.flax.model import Model, Outcome


class MakesParams(Protocol):
    """A model without Flax, as far as it is known."""

    def init(self, key: jax.Array, batch: Batch, /) -> Params:
        """Makes the parameters, a pytree of arrays."""
        ...


def plain_model(model: MakesParams, loss: Callable) -> Model:
    """Parameters that are a pytree and nothing more; the loss function is the whole model."""

    def init(key, batch):
        params = model.init(key, batch)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            if not hasattr(leaf, "dtype"):
                raise ModelError(
                    f"model.init(key, batch) returned a {type(leaf).__name__} at params{jax.tree_util.keystr(path)}; "
                    "every leaf must be an array."
                )
        return jax.tree.map(jnp.asarray, params), {}

    def apply(params, model_state, batch, key, train):
        value, metrics = loss(params, batch, train)
        return Outcome(value, metrics, model_state)

    return Model(init, apply)
