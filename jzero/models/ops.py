"""The GPT's arithmetic as pure functions, so that its NNX and Linen forms cannot differ.

The compute dtype is whatever dtype the parameters have when they arrive: the caller casts them, nothing here does.
Means, variances, softmax and logits are computed in float32 at every dtype.
"""

import jax
import jax.numpy as jnp

LAYER_NORM_EPSILON = 1e-5


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Normalises the last dimension in float32 and rounds once, back to the dtype of `x`.

    Args:
        x: `[..., d]`.
        scale: `[d]`.
        bias: `[d]`.

    Returns:
        `[..., d]` in the dtype of `x`.
    """
    y = x.astype(jnp.float32)
    y = y - y.mean(axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + LAYER_NORM_EPSILON)
    return (y * scale.astype(jnp.float32) + bias.astype(jnp.float32)).astype(x.dtype)


def causal_attention(qkv: jax.Array, n_head: int) -> jax.Array:
    """Causal multi-head self-attention, the softmax in float32.

    Args:
        qkv: `[B, T, 3 d]`: queries, keys and values side by side.
        n_head: number of heads.

    Returns:
        `[B, T, d]`.
    """
    *batch, n_tokens, width = qkv.shape
    d_head = width // (3 * n_head)
    q, k, v = jnp.split(qkv.reshape(*batch, n_tokens, 3 * n_head, d_head), 3, axis=-2)  # each [B, T, n_head, d_head]
    # Products stay in the dtype of their operands: a float32 output would make the backward products mix dtypes.
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * d_head**-0.5
    causal = jnp.tril(jnp.ones((n_tokens, n_tokens), jnp.bool_))
    weights = jax.nn.softmax(scores, axis=-1, where=causal).astype(v.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(*batch, n_tokens, width // 3)


def gelu(x: jax.Array) -> jax.Array:
    """GELU in its tanh form, as GPT-2 has it."""
    return jax.nn.gelu(x, approximate=True)


def embed(tokens: jax.Array, wte: jax.Array, wpe: jax.Array) -> jax.Array:
    """Token plus position embedding: `[B, T]` ids, `[vocab, d]`, `[seq_len, d]` -> `[B, T, d]`."""
    return wte[tokens] + wpe[: tokens.shape[-1]]


def tied_logits(x: jax.Array, wte: jax.Array) -> jax.Array:
    """Scores of the next token from the embedding's own table: `[B, T, d]`, `[vocab, d]` -> float32 `[B, T, vocab]`."""
    return jnp.einsum("btd,vd->btv", x, wte, preferred_element_type=jnp.float32)
