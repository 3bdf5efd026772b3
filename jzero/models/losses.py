"""Loss functions: cross entropy of the next token or of a label, in float32 and without a second copy of the logits."""

from typing import Protocol, cast, runtime_checkable

import jax
import jax.numpy as jnp

from jzero.models.ops import Output
from jzero.ops import cross_entropy
from jzero.ops.loss_checks import HeadLayout


@runtime_checkable
class WithOutput(Protocol):
    """A model of text that hands its hidden states and output layer to what asks for them."""

    def __call__(self, tokens: jax.Array, **options: bool) -> jax.Array:
        """Returns logits."""
        ...

    def with_output(self, tokens: jax.Array, output: Output, **options: bool) -> jax.Array:
        """Returns `output(hidden, head, head_layout)`; see `jzero.models.ops.Output`."""
        ...


def next_token_loss(model, batch) -> jax.Array:
    """Mean cross entropy of every next token.

    Args:
        model: called with `int32[B, T]` tokens, returns float32 logits `[B, T, vocab]`. One that has a method
            `with_output(tokens, output)`, as this package's have, need not: it returns `output(hidden, head, layout)`,
            of hidden states `[B, T, d]` and the output layer, see `jzero.cross_entropy`, and most logits never exist.
            It must stand in the class that has `__call__`.
        batch: `{"tokens": int32[B, T + 1]}`.

    Returns:
        float32 scalar, in nats per token.

    Example:
        >>> uniform = lambda tokens: jnp.zeros((*tokens.shape, 256), jnp.float32)
        >>> print(round(float(next_token_loss(uniform, {"tokens": jnp.zeros((2, 9), jnp.int32)})), 3))
        5.545
    """
    return _next_token_loss(model, batch)


def linen_next_token_loss(model, batch, train: bool) -> jax.Array:
    """`next_token_loss` for a Linen module, which must be told whether dropout runs."""
    return _next_token_loss(model, batch, deterministic=not train)


def _next_token_loss(model, batch, **options: bool) -> jax.Array:
    tokens, targets = batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    if not _offers_output(model):
        return _cross_entropy(model(tokens, **options), targets)

    def loss(hidden: jax.Array, head: jax.Array, head_layout: HeadLayout) -> jax.Array:
        softcap = getattr(model, "logit_softcap", None)
        mean = cross_entropy(hidden, head, targets, head_layout=head_layout, softcap=softcap)
        return mean.total / cast(jax.Array, mean.weight)

    return model.with_output(tokens, loss, **options)


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
    return _cross_entropy(model(batch["image"]), batch["label"])


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean of `-log softmax(logits)[label]`: float32 `[..., n]`, int `[...]` -> float32 scalar."""
    # The label's logit by comparison, not by indexing: it fuses, and its gradient is no second [..., n] scatter.
    is_label = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1) == labels[..., None]
    label_logits = jnp.sum(logits, axis=-1, where=is_label)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - label_logits)
