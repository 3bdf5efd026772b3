"""A model without Flax as two pure functions: an object that makes parameters, and a loss that does the rest."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jzero.errors import ModelError
from jzero.flax.model import Model, Outcome


def plain_model(model: Any, loss: Callable) -> Model:
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
