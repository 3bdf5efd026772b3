"""Flax NNX, Linen and plain functions behind one interface of two pure functions: `init` and `apply`.

The rest of jzero sees parameters and model state as plain pytrees, and a loss as a pure function of them. Random
streams are not state: they are derived from a key at every call, which makes them reproducible and different on each
data shard.
"""

import inspect
from collections.abc import Callable
from typing import cast

import jax
from flax import linen as nn
from flax import nnx

from jzero.base.types import Batch, Params
from jzero.errors import ModelError
from jzero.flax.linen import linen_model
from jzero.flax.mean import Mean, as_means
from jzero.flax.model import Model
from jzero.flax.nnx import nnx_model
from jzero.flax.plain import MakesParams, plain_model


def adapt(model: object, loss_fn: Callable) -> Model:
    """Wraps a user's model and loss.

    Args:
        model: a Linen module; a callable `rngs -> NNX module`; or, without Flax, any object with a method
            `init(key, batch) -> params`, a pytree of arrays.
        loss_fn: `loss_fn(model, batch)`, or without Flax `loss_fn(params, batch)`, which returns a scalar or `Mean`, or
            a pair of that and a dict of such metrics. With a third parameter named `train` it is told whether this is
            a training step. NNX modules are switched to training or evaluation mode; for the others that parameter is
            the only way to know.

    Raises:
        ModelError: if `model` is none of these.
    """
    takes_train = "train" in inspect.signature(loss_fn).parameters

    def loss(module: nn.Module | nnx.Module | Params, batch: Batch, train: bool) -> tuple[Mean, dict[str, Mean]]:
        return as_means(loss_fn(module, batch, train=train) if takes_train else loss_fn(module, batch))

    if isinstance(model, nn.Module):
        return linen_model(model, loss)
    if isinstance(model, nnx.Module):
        raise ModelError(
            f"model is an instance of {type(model).__name__}, already whole on one device; pass a function that "
            f"makes it, such as `model=lambda rngs: {type(model).__name__}(..., rngs=rngs)`, and trained weights as "
            "`params=`."
        )
    if inspect.isclass(model) and issubclass(model, nn.Module):
        raise ModelError(
            f"model is the class {model.__name__}; pass an instance of it, such as `model={model.__name__}()`."
        )
    if isinstance(inner := getattr(model, "module", None), nn.Module):
        raise ModelError(
            f"model is a {type(model).__name__} around the Linen module {type(inner).__name__}; pass `model.module`, "
            "and trained weights, such as `model.params`, as `params=`."
        )
    if callable(getattr(model, "init", None)) and not inspect.isclass(model):
        return plain_model(cast(MakesParams, model), loss)
    if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(model)):
        raise ModelError(
            f"model is an instance of {type(model).__name__}, a pytree with arrays in it, as Equinox has them; pass an "
            f"object with `def init(self, key, batch): return eqx.filter({type(model).__name__}(..., key=key), "
            "eqx.is_array)`, and begin loss_fn(params, batch) with `model = eqx.combine(params, static)`, where "
            "`static` is the other half of `eqx.partition`."
        )
    if callable(model):
        return nnx_model(model, loss)
    raise ModelError(
        f"model is a {type(model).__name__}; jzero takes a Linen module, a function `rngs -> NNX module` or an object "
        "with `init(key, batch) -> params`."
    )
