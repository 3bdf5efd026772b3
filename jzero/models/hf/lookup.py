"""Looking tokens up in a table, of which the row of padding stays as it is."""

import jax
import jax.numpy as jnp


def looked_up(table: jax.Array, tokens: jax.Array, pad: int | None) -> jax.Array:
    """Rows of a table, `[n, d]`, `int[...]` -> `[..., d]`.

    Args:
        table: of embeddings.
        tokens: which rows.
        pad: the row that gets no gradient from here, as with torch's `padding_idx`; None for none.

    Example:
        >>> grad = jax.grad(lambda table: looked_up(table, jnp.array([0, 1]), 0).sum())
        >>> grad(jnp.ones((2, 1))).tolist()
        [[0.0], [1.0]]
    """
    rows = table[tokens]
    return rows if pad is None else jnp.where((tokens == pad)[..., None], jax.lax.stop_gradient(rows), rows)
