"""Loss functions: cross entropy of the next token, in float32 and without a second copy of the logits."""

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
    labels = tokens[:, 1:]
    logits = model(tokens[:, :-1])  # [B, T, vocab]
    # The label's logit by comparison, not by indexing: it fuses, and its gradient is no second [B, T, vocab] scatter.
    is_label = jax.lax.broadcasted_iota(labels.dtype, logits.shape, 2) == labels[..., None]
    label_logits = jnp.sum(logits, axis=-1, where=is_label)
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - label_logits)


def linen_next_token_loss(model, batch, train: bool) -> jax.Array:
    """`next_token_loss` for a Linen module, which must be told whether dropout runs."""
    return next_token_loss(lambda tokens: model(tokens, deterministic=not train), batch)
