"""Loss functions: cross entropy of the next token or of a label, in float32 and without a second copy of the logits."""

import inspect
from collections.abc import Callable, Iterable
from typing import Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp

from jzero.errors import ModelError
from jzero.flax.mean import Mean
from jzero.models.ops import Output
from jzero.ops import cross_entropy
from jzero.ops.loss_checks import HeadLayout


@runtime_checkable
class WithOutput(Protocol):
    """A model of text that hands its hidden states and output layer to what asks for them."""

    def __call__(self, tokens: jax.Array, **options: bool | jax.Array) -> jax.Array:
        """Returns logits."""
        ...

    def with_output(self, tokens: jax.Array, output: Output, **options: bool | jax.Array) -> jax.Array | Mean:
        """Returns `output(hidden, head, head_layout)`; see `jzero.models.ops.Output`."""
        ...


def next_token_loss(model, batch) -> jax.Array | Mean:
    """Mean cross entropy of every next token, or of those that count.

    Args:
        model: called with `int32[B, T]` tokens, returns float32 logits `[B, T, vocab]`. One that has a method
            `with_output(tokens, output)`, as this package's have, need not: it returns `output(hidden, head, layout)`,
            of hidden states `[B, T, d]` and the output layer, see `jzero.cross_entropy`, and most logits never exist.
            It must stand in the class that has `__call__`.
        batch: `{"tokens": int32[B, T + 1]}`. Beside them may be, of the same shape, `loss_mask` (the weight of each
            token as a target) and `segment_ids` (the documents of packed rows, 0 for padding): a document's first token
            is no target then, and the model is called with `segment_ids=`, and `positions=` if there are any.

    Returns:
        float32 scalar, in nats per token; a `jzero.Mean` where not every token counts.

    Raises:
        ModelError: the rows are packed, and the model takes no `segment_ids`.

    Example:
        >>> uniform = lambda tokens: jnp.zeros((*tokens.shape, 256), jnp.float32)
        >>> print(round(float(next_token_loss(uniform, {"tokens": jnp.zeros((2, 9), jnp.int32)})), 3))
        5.545
    """
    return _next_token_loss(model, batch)


def linen_next_token_loss(model, batch, train: bool) -> jax.Array | Mean:
    """`next_token_loss` for a Linen module, which must be told whether dropout runs."""
    return _next_token_loss(model, batch, deterministic=not train)


def _next_token_loss(model, batch, **options: bool | jax.Array) -> jax.Array | Mean:
    tokens, targets, weights = batch["tokens"][:, :-1], batch["tokens"][:, 1:], _weights(batch)
    if documents := {name: batch[name][:, :-1] for name in ("segment_ids", "positions") if name in batch}:
        _check_takes(model, documents)
        options |= documents
    if not _offers_output(model):
        return _cross_entropy(model(tokens, **options), targets, weights)

    def loss(hidden: jax.Array, head: jax.Array, head_layout: HeadLayout) -> jax.Array | Mean:
        softcap = getattr(model, "logit_softcap", None)
        mean = cross_entropy(hidden, head, targets, head_layout=head_layout, mask=weights, softcap=softcap)
        return mean.total / cast(jax.Array, mean.weight) if weights is None else mean

    return model.with_output(tokens, loss, **options)


def _weights(batch) -> jax.Array | None:
    """What each target counts, `[B, T]`; None where all count alike."""
    if "loss_mask" not in batch and "segment_ids" not in batch:
        return None
    weights = batch["loss_mask"][:, 1:] if "loss_mask" in batch else jnp.ones_like(batch["tokens"][:, 1:])
    if "segment_ids" in batch:
        before, of = batch["segment_ids"][:, :-1], batch["segment_ids"][:, 1:]
        weights = jnp.where((before == of) & (of != 0), weights, jnp.zeros_like(weights))
    return weights.astype(jnp.float32)


def _check_takes(model: Callable, names: Iterable[str]) -> None:
    """A model that knows of no documents would let them see each other."""
    parameters = inspect.signature(model).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    if missing := [name for name in names if name not in parameters]:
        raise ModelError(
            f"the batch has {' and '.join(missing)}, for rows of several documents, which {type(model).__name__} does "
            "not take; give it such arguments, or rows of one document each."
        )


def _offers_output(model: object) -> bool:
    """Whether `with_output` is what the model's `__call__` is: not where a subclass has another `__call__` alone."""
    if not isinstance(model, WithOutput):
        return False
    home = lambda name: next((cls for cls in type(model).__mro__ if name in vars(cls)), None)
    return home("with_output") is home("__call__")


def classification_loss(model, batch) -> jax.Array:
    """Mean cross entropy of every image's label.

    Args:
        model: called with floats `[B, H, W, C]`, returns float32 logits `[B, n_classes]`.
        batch: `{"image": floats [B, H, W, C], "label": int32[B]}`.

    Returns:
        float32 scalar, in nats per image.

    Example:
        >>> uniform = lambda images: jnp.zeros((images.shape[0], 10), jnp.float32)
        >>> batch = {"image": jnp.zeros((2, 8, 8, 3)), "label": jnp.zeros(2, jnp.int32)}
        >>> print(round(float(classification_loss(uniform, batch)), 3))
        2.303
    """
    return cast(jax.Array, _cross_entropy(model(batch["image"]), batch["label"]))


def _cross_entropy(logits: jax.Array, labels: jax.Array, weights: jax.Array | None = None) -> jax.Array | Mean:
    """Mean of `-log softmax(logits)[label]`: float32 `[..., n]`, int `[...]` -> float32 scalar."""
    # The label's logit by comparison, not by indexing: it fuses, and its gradient is no second [..., n] scatter.
    is_label = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1) == labels[..., None]
    label_logits = jnp.sum(logits, axis=-1, where=is_label)
    losses = jax.nn.logsumexp(logits, axis=-1) - label_logits
    return jnp.mean(losses) if weights is None else Mean((losses * weights).sum(), weights.sum())
