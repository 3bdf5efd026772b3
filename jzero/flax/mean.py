"""Losses and metrics as a total and a weight, divided only after sums over devices and micro-batches."""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jzero.errors import ModelError

STEP_METRICS = frozenset(
    {
        *("loss", "grad_norm", "learning_rate", "momentum", "loss_scale", "overflow", "skipped_steps", "applied_steps"),
        *("skipped_share", "skipped_in_a_row", "nonfinite_leaf", "nonfinite_micro_batch"),
    }
)
"""What a training step reports by itself; a loss function's own metrics have other names."""


class Mean(NamedTuple):
    """A mean that is not finished: what a loss over a varying number of tokens returns.

    Attributes:
        total: the sum over this batch's items, a scalar.
        weight: how many items (or how much weight) it covers, a scalar. Over micro-batches and devices totals and
            weights are added up before they are divided. None is an ordinary mean, where all of them count alike. A
            metric that is a plain number weighs as much as the loss beside it.

    Example:
        >>> token_losses, mask = jnp.array([1.0, 3.0, 9.0]), jnp.array([1.0, 1.0, 0.0])
        >>> mean = Mean(total=(token_losses * mask).sum(), weight=mask.sum())
        >>> float(mean.total / mean.weight)
        2.0
    """

    total: jax.Array
    weight: jax.Array | None = None


def as_means(returned: object) -> tuple[Mean, dict[str, Mean]]:
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
    loss = _as_mean("the loss", value)
    of = lambda name, metric: _as_mean(f"the metric {name!r}", metric)
    return loss, {n: of(n, m) if isinstance(m, Mean) else _like_loss(of(n, m), loss) for n, m in metrics.items()}


def _like_loss(metric: Mean, loss: Mean) -> Mean:
    """A plain number beside a loss that is weighted counts as much as that does."""
    if loss.weight is None:
        return metric
    weight = jax.lax.stop_gradient(loss.weight)
    return Mean(jnp.where(weight > 0, metric.total * weight, 0.0), weight)


def _as_mean(name: str, value: object) -> Mean:
    parts = value if isinstance(value, Mean) else Mean(cast(jax.Array, value))
    given = cast(tuple[ArrayLike, ...], parts[: 1 if parts.weight is None else 2])
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
