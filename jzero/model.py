"""Flax NNX and Linen behind one interface of two pure functions: `init` and `apply`.

The rest of jzero sees parameters and model state as plain pytrees, and a loss as a pure function of them. Random
streams are not state: they are derived from a key at every call, which makes them reproducible and different on each
data shard.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from jzero.errors import ModelError
from jzero.mesh import DATA_AXES


class Mean(NamedTuple):
    """A mean that is not finished: what a loss over a varying number of tokens returns.

    Attributes:
        total: the sum over this batch's items, a scalar.
        weight: how many items (or how much weight) it covers, a scalar. Over micro-batches and devices totals and
            weights are added up before they are divided.

    Example:
        >>> token_losses, mask = jnp.array([1.0, 3.0, 9.0]), jnp.array([1.0, 1.0, 0.0])
        >>> mean = Mean(total=(token_losses * mask).sum(), weight=mask.sum())
        >>> float(mean.total / mean.weight)
        2.0
    """

    total: jax.Array
    weight: jax.Array | None = None  # None: an ordinary mean, every micro-batch and device counts alike


class Outcome(NamedTuple):
    """What one evaluation of the loss gives: the loss and further metrics, all as `Mean`s, and the new model state."""

    loss: Mean
    metrics: dict[str, Mean]
    model_state: Any


class Model(NamedTuple):
    """A model and its loss as pure functions.

    Attributes:
        init: `init(key, batch) -> (params, model_state)`, for use under `jit`; the batch gives shapes only.
        apply: `apply(params, model_state, batch, key, train) -> Outcome`, inside `shard_map` over the data axes.
    """

    init: Callable[[jax.Array, Any], tuple[Any, Any]]
    apply: Callable[[Any, Any, Any, jax.Array, bool], Outcome]


def adapt(model: Any, loss_fn: Callable) -> Model:
    """Wraps a user's model and loss.

    Args:
        model: a Linen module, or a callable `rngs -> NNX module`.
        loss_fn: `loss_fn(model, batch)`, which returns a scalar or `Mean`, or a pair of that and a dict of such
            metrics. With a third parameter named `train` it is told whether this is a training step. NNX modules are
            switched to training or evaluation mode; for Linen that parameter is the only way to know.

    Raises:
        ModelError: if `model` is neither.
    """
    takes_train = "train" in inspect.signature(loss_fn).parameters

    def loss(module: Any, batch: Any, train: bool) -> tuple[Mean, dict[str, Mean]]:
        return as_means(loss_fn(module, batch, train=train) if takes_train else loss_fn(module, batch))

    if isinstance(model, nn.Module):
        return _linen(model, loss)
    if isinstance(model, nnx.Module):
        raise ModelError(
            f"model is an instance of {type(model).__name__}, already whole on one device; pass a function that "
            f"makes it, such as `model=lambda rngs: {type(model).__name__}(..., rngs=rngs)`, and trained weights as "
            "`params=`."
        )
    if callable(model):
        return _nnx(model, loss)
    raise ModelError(
        f"model is a {type(model).__name__}; jzero takes a Linen module or a function `rngs -> NNX module`."
    )


def as_means(returned: Any) -> tuple[Mean, dict[str, Mean]]:
    """Checks what a loss function returned and brings it into one form.

    Raises:
        ModelError: if the loss or a metric is not a floating scalar, or the metrics are not a dict.
    """
    value, metrics = returned if isinstance(returned, tuple) and not isinstance(returned, Mean) else (returned, {})
    if not isinstance(metrics, dict):
        raise ModelError(
            f"the second thing that loss_fn returned is a {type(metrics).__name__}; it must be a dict of metrics."
        )
    return _as_mean("the loss", value), {name: _as_mean(f"the metric {name!r}", m) for name, m in metrics.items()}


def _as_mean(name: str, value: Any) -> Mean:
    parts = value if isinstance(value, Mean) else Mean(value)
    for part in jax.tree.leaves(tuple(parts)):
        shape, dtype = jnp.shape(part), jnp.result_type(part)
        if shape:
            raise ModelError(f"{name} has shape {shape}; loss_fn must return scalars, for instance by taking the mean.")
        if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
            raise ModelError(f"{name} is a scalar of dtype {dtype}; loss_fn must return real numbers.")
    if name == "the loss" and not jnp.issubdtype(jnp.result_type(parts.total), jnp.floating):
        raise ModelError(
            f"{name} is an integer ({jnp.result_type(parts.total)}); it must be floating to have a gradient."
        )
    return jax.tree.map(lambda part: jnp.asarray(part).astype(jnp.float32), parts)


def _nnx(factory: Callable[[nnx.Rngs], Any], loss: Callable) -> Model:
    abstract = nnx.eval_shape(lambda: factory(nnx.Rngs(0)))
    if not isinstance(abstract, nnx.Module):
        raise ModelError(f"model(rngs) returned a {type(abstract).__name__}; it must return a flax.nnx.Module.")
    kinds = (nnx.Param, nnx.RngState, ...)
    graphdef, *shapes = nnx.split(abstract, *kinds)
    as_params, as_streams, as_rest = (jax.tree.structure(s) for s in shapes)
    streams_shapes = jax.tree.leaves(shapes[1])

    def init(key, batch):
        _, params, _, rest = nnx.split(factory(nnx.Rngs(key)), *kinds)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def fresh_streams(key):
        def fresh(i, like):
            if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
                return jnp.zeros(like.shape, like.dtype)  # the stream's call counter
            stream = jax.random.fold_in(key, i)
            return jax.random.split(stream, like.shape) if like.shape else stream

        return as_streams.unflatten([fresh(i, like) for i, like in enumerate(streams_shapes)])

    def apply(params, model_state, batch, key, train):
        states = (as_params.unflatten(jax.tree.leaves(params)), as_rest.unflatten(jax.tree.leaves(model_state)))
        module = nnx.merge(graphdef, states[0], fresh_streams(key), states[1], copy=True)
        (module.train if train else module.eval)()
        for _, part in nnx.iter_modules(module):
            if isinstance(part, nnx.BatchNorm) and part.axis_name is None:
                part.axis_name = DATA_AXES  # pyright: ignore[reportAttributeAccessIssue]  # several axes work too
        value, metrics = loss(module, batch, train)
        # The loss may leave new variables behind (sown intermediates); only those that last are state.
        lasting = dict(nnx.to_flat_state(nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState)))))
        kept = [lasting[path].get_value() for path, _ in nnx.to_flat_state(shapes[2])]
        return Outcome(value, metrics, jax.tree.structure(model_state).unflatten(kept))

    return Model(init, apply)


def _linen(module: nn.Module, loss: Callable) -> Model:
    def rngs(key):
        return {"params": key, "dropout": jax.random.fold_in(key, 1)}

    def init(key, batch):
        variables = nn.init(lambda m: loss(m, batch, True), module)(rngs(key))
        variables = nn.unbox(variables)
        return variables.pop("params", {}), variables

    def apply(params, model_state, batch, key, train):
        run = nn.apply(lambda m: loss(m, batch, train), module, mutable=list(model_state) if train else False)
        with nn.intercept_methods(_synchronise_batch_norm):
            out = run({"params": params, **model_state}, rngs=rngs(key))
        (value, metrics), changed = out if train else (out, {})
        return Outcome(value, metrics, {**model_state, **changed})

    return Model(init, apply)


def _synchronise_batch_norm(next_method, args, kwargs, context):
    """Makes a Linen BatchNorm that names no axis take its statistics over the whole batch, as on one device."""
    module = context.module
    if isinstance(module, nn.BatchNorm) and context.method_name == "__call__" and module.axis_name is None:
        object.__setattr__(module, "axis_name", DATA_AXES)  # Linen modules are frozen; this one lives for one call
    return next_method(*args, **kwargs)
