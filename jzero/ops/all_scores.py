"""Attention with all scores at once: O(T^2) memory, the quickest for short rows, and what the other paths equal."""

import jax
import jax.numpy as jnp

from jzero.ops.blocks import UNSEEN, Form, Inputs
from jzero.ops.visibility import visible


def plain(form: Form, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
    """What `jzero.ops.blocks.blockwise` returns; dropout draws other numbers."""
    scores = jnp.einsum("bkgqd,bksd->bkgqs", inputs.q, inputs.k).astype(jnp.float32) * form.scale
    if form.softcap is not None:
        scores = form.softcap * jnp.tanh(scores / form.softcap)
    if inputs.bias is not None:
        scores += inputs.bias.astype(jnp.float32)
    seen = visible(form.rule, inputs.queries, inputs.keys)
    if seen is None:
        weights, lse = jax.nn.softmax(scores, axis=-1), jax.nn.logsumexp(scores, axis=-1)
    else:
        seen = seen[:, None, None]
        scores = jnp.where(seen, scores, UNSEEN)
        weights = jnp.where(seen, jax.nn.softmax(scores, axis=-1), 0)  # zeros for a query that sees nothing
        lse = jnp.where(seen.any(axis=-1), jax.nn.logsumexp(scores, axis=-1), -jnp.inf)
    if inputs.key is not None:
        kept = jax.random.bernoulli(jax.random.wrap_key_data(inputs.key), 1 - form.dropout, weights.shape)
        weights = jnp.where(kept, weights / (1 - form.dropout), 0)
    out = jnp.einsum("bkgqs,bksd->bkgqd", weights.astype(inputs.v.dtype), inputs.v)
    return out, lse
