"""The loss of models that classify rows of text."""

import jax
import jax.numpy as jnp


def row_classification_loss(model, batch) -> jax.Array:
    """Mean cross entropy of every row's label.

    Args:
        model: called with `int32[B, T]` tokens and `mask=` and `types=`, returns float32 logits `[B, n_labels]`.
        batch: `{"tokens": int32[B, T], "label": int32[B]}`, and where rows are padded `"mask": int32[B, T]`, 1 for
            tokens and 0 for padding; `"types": int32[B, T]` where tokens are of several types.

    Returns:
        float32 scalar, in nats per row.

    Example:
        >>> uniform = lambda tokens, mask, types: jnp.zeros((len(tokens), 4))
        >>> batch = {"tokens": jnp.zeros((2, 8), jnp.int32), "label": jnp.zeros(2, jnp.int32)}
        >>> print(round(float(row_classification_loss(uniform, batch)), 3))
        1.386
    """
    logits = model(batch["tokens"], mask=batch.get("mask"), types=batch.get("types"))
    scores = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["label"][:, None], axis=-1)
    return -scores.mean()
