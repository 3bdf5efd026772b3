"""Flax NNX, Linen and plain functions behind one interface of two pure functions: `init` and `apply`.

The rest of jzero sees parameters and model state as plain pytrees, and a loss as a pure function of them. Random
streams are not state: they are derived from a key at every call, which makes them reproducible and different on each
data shard.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from jzero.base.types import Batch, ModelState
from jzero.errors import ModelError
from jzero.flax.tied import tied_names
from jzero.sharding.mesh import DATA_AXES

STEP_METRICS = frozenset(
    {
        *("loss", "grad_norm", "learning_rate", "loss_scale", "overflow", "skipped_steps", "applied_steps"),
        *("skipped_share", "skipped_in_a_row", "nonfinite_leaf", "nonfinite_micro_batch"),
    }
)
"""What a training step reports by itself; a loss function's own metrics have other names."""


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
    model_state: ModelState


class Model(NamedTuple):
    """A model and its loss as pure functions.

    Attributes:
        init: `init(key, batch) -> (params, model_state)`, for use under `jit`; the batch gives shapes only.
        apply: `apply(params, model_state, batch, key, train) -> Outcome`, inside `shard_map` over the data axes.
        aliases: further dotted names of tied parameters -> the name of the leaf.
    """

    init: Callable[[jax.Array, Any], tuple[Any, Any]]
    apply: Callable[[Any, Any, Any, jax.Array, bool], Outcome]
    aliases: Mapping[str, str] = MappingProxyType({})


def adapt(model: Any, loss_fn: Callable) -> Model:
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

    def loss(module: Any, batch: Batch, train: bool) -> tuple[Mean, dict[str, Mean]]:
        return as_means(loss_fn(module, batch, train=train) if takes_train else loss_fn(module, batch))

    if isinstance(model, nn.Module):
        return _linen(model, loss)
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
    if callable(getattr(model, "init", None)) and not inspect.isclass(model):
        return _pure(model, loss)
    if callable(model):
        return _nnx(model, loss)
    raise ModelError(
        f"model is a {type(model).__name__}; jzero takes a Linen module, a function `rngs -> NNX module` or an object "
        "with `init(key, batch) -> params`."
    )


def as_means(returned: Any) -> tuple[Mean, dict[str, Mean]]:
    """Checks what a loss function returned and brings it into one form.

    Raises:
        ModelError: if the loss or a metric is not a floating scalar, or the metrics are not a dict.
    """
    parts = returned if isinstance(returned, tuple) and not isinstance(returned, Mean) else (returned, {})
    if len(parts) != 2:
        raise ModelError(
            f"loss_fn returned {len(parts)} things; it must return a loss, or a loss and a dict of metrics."
        )
    value, metrics = parts
    if not isinstance(metrics, dict):
        raise ModelError(
            f"the second thing that loss_fn returned is a {type(metrics).__name__}; it must be a dict of metrics."
        )
    if odd := [name for name in metrics if not isinstance(name, str)]:
        raise ModelError(f"loss_fn returned a metric named {odd[0]!r}; names must be strings.")
    if taken := sorted(STEP_METRICS & metrics.keys()):
        raise ModelError(
            f"loss_fn returned the metric {taken[0]!r}, which the training step reports itself; rename it."
        )
    return _as_mean("the loss", value), {name: _as_mean(f"the metric {name!r}", m) for name, m in metrics.items()}


def _as_mean(name: str, value: Any) -> Mean:
    parts = value if isinstance(value, Mean) else Mean(value)
    given: tuple[Any, ...] = parts[: 1 if parts.weight is None else 2]
    for part in given:
        if not (isinstance(part, (int, float)) or hasattr(part, "dtype")):
            raise ModelError(f"{name} is a {type(part).__name__}; loss_fn must return scalars.")
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
    def make(rngs):
        module = factory(rngs)
        if not isinstance(module, nnx.Module):
            raise ModelError(f"model(rngs) returned a {type(module).__name__}; it must return a flax.nnx.Module.")
        return _with_arrays_as_data(module)

    kinds = (nnx.Param, nnx.RngState, ...)
    aliases: dict[str, str] = {}
    graphdefs: list[Any] = []

    # Making a module is slow to trace, so that it is traced once for whatever needs its shapes or its values. It is
    # split while arrays are arrays: in a container that a module holds, NNX would not know their shapes for data.
    @jax.jit
    def parts(key):
        module = make(nnx.Rngs(key))
        aliases.update(tied_names(module))
        graphdef, *states = nnx.split(module, *kinds)
        graphdefs[:] = [graphdef]
        return states

    shapes = jax.eval_shape(parts, jax.eval_shape(jax.random.key, 0))
    (graphdef,) = graphdefs
    as_params, as_streams, as_rest = (jax.tree.structure(s) for s in shapes)
    streams_shapes = jax.tree.leaves(shapes[1])

    def init(key, batch):
        params, _, rest = parts(key)
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
            _follow_the_engine(part)
        value, metrics = loss(module, batch, train)
        # The loss may leave new variables behind (sown intermediates); only those that last are state.
        lasting = dict(nnx.to_flat_state(nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState)))))
        kept = [lasting[path] for path, _ in nnx.to_flat_state(shapes[2])]
        kept = [x.get_value() if isinstance(x, nnx.Variable) else x for x in kept]
        return Outcome(value, metrics, jax.tree.structure(model_state).unflatten(kept))

    return Model(init, apply, aliases)


def _follow_the_engine(part: nnx.Module) -> None:
    """Undoes what two NNX layers settle when they are made, before they know how they will be trained."""
    if isinstance(part, nnx.BatchNorm) and part.axis_name is None:
        # Statistics of the whole batch, as on one device. Several axes work, though the annotation knows only one.
        part.axis_name = DATA_AXES  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(part, nnx.Embed) and part.dtype == part.param_dtype:
        part.dtype = None  # the dtype of the parameters at hand, as in every other layer; not that of the fp32 master


def _with_arrays_as_data(module: nnx.Module) -> nnx.Module:
    """Marks plain arrays that a module holds as data: while traced, unlike otherwise, NNX takes them for static."""
    for _, part in list(nnx.iter_graph(module)):
        if isinstance(part, nnx.Pytree):
            for name, value in list(vars(part).items()):
                if isinstance(value, jax.Array) and not nnx.is_data(value):
                    setattr(part, name, nnx.data(value))
    return module


def _linen(module: nn.Module, loss: Callable) -> Model:
    def rngs(key):
        return {"params": key, "dropout": jax.random.fold_in(key, 1)}

    def init(key, batch):
        variables = nn.init(lambda m: loss(m, batch, True), module)(rngs(key))
        variables = nn.unbox(variables)
        _, after = jax.eval_shape(
            nn.apply(lambda m: loss(m, batch, True), module, mutable=True), variables, rngs=rngs(key)
        )
        params = variables.pop("params", {})
        # A collection that grows when the model runs is sown into: it belongs to one call and is not state.
        lasts = lambda name: jax.tree.structure(after[name]) == jax.tree.structure(variables[name])
        return params, {name: variables[name] for name in variables if lasts(name)}

    def apply(params, model_state, batch, key, train):
        constant = ["params"] if train else ["params", *model_state]
        run = nn.apply(lambda m: loss(m, batch, train), module, mutable=nn.DenyList(constant))
        with nn.intercept_methods(_synchronise_batch_norm):
            (value, metrics), changed = run({"params": params, **model_state}, rngs=rngs(key))
        return Outcome(value, metrics, {name: changed.get(name, old) for name, old in model_state.items()})

    return Model(init, apply)


def _synchronise_batch_norm(next_method, args, kwargs, context):
    """Makes a Linen BatchNorm that names no axis take its statistics over the whole batch, as on one device."""
    module = context.module
    if isinstance(module, nn.BatchNorm) and context.method_name == "__call__" and module.axis_name is None:
        object.__setattr__(module, "axis_name", DATA_AXES)  # Linen modules are frozen; this one lives for one call
    return next_method(*args, **kwargs)


def _pure(model: Any, loss: Callable) -> Model:
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
