"""Loss functions: cross entropy of the next token or of a label, in float32 and without a second copy of the logits."""

import jax
import jax.numpy as jnp


def next_token_loss(model, batch) -> jax.Array:
    """Mean cross entropy of every next token.

    Args:
        model: called with `int32[B, T]` tokens, returns float32 logits `[B, T, vocab]`.
        batch: `{"tokens": int32[B, T + 1]}`.

    Returns:
        float32 scalar, in nats per token.

    Example:
        >>> uniform = lambda tokens: jnp.zeros((*tokens.shape, 256), jnp.float32)
        >>> print(round(float(next_token_loss(uniform, {"tokens": jnp.zeros((2, 9), jnp.int32)})), 3))
        5.545
    """
    tokens = batch["tokens"]
    return _cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])


def linen_next_token_loss(model, batch, train: bool) -> jax.Array:
    """`next_token_loss` for a Linen module, which must be told whether dropout runs."""
    return next_token_loss(lambda tokens: model(tokens, deterministic=not train), batch)


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
