"""The transformers' arithmetic as pure functions, so that no two forms of a model can differ.

The compute dtype is whatever dtype the parameters have when they arrive: the caller casts them, nothing here does.
Means, variances, rotations, softmax and logits are computed in float32 at every dtype.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jzero.ops import attention
from jzero.ops.loss_checks import HeadLayout
from jzero.ops.recompute import keeping_inputs
from jzero.ops.request import Implementation


class Documents(NamedTuple):
    """The documents of packed rows.

    Attributes:
        segment_ids: `int[B, T]`, the number of each token's document; a token sees its own document only.
        positions: `int[B, T]`, each token's place in its document.
    """

    segment_ids: jax.Array | None = None
    positions: jax.Array | None = None


ONE_DOCUMENT = Documents()
"""Those of rows that are not packed."""

Output: TypeAlias = Callable[[jax.Array, jax.Array, HeadLayout], jax.Array]
"""What a decoder does at its end with hidden states, the output layer's weights and their layout; see `logits`."""

LAYER_NORM_EPSILON = 1e-5


def layer_norm(x: jax.Array, scale: jax.Array, bias: jax.Array, epsilon: float = LAYER_NORM_EPSILON) -> jax.Array:
    """Normalises the last dimension in float32 and rounds once, back to the dtype of `x`.

    Args:
        x: `[..., d]`.
        scale: `[d]`.
        bias: `[d]`.
        epsilon: added to the variance.

    Returns:
        `[..., d]` in the dtype of `x`.
    """

    @keeping_inputs
    def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y = y - y.mean(axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + epsilon)
        return y * scale.astype(jnp.float32)

    # Outside, since what is added is not needed backward, and would be gathered again for nothing.
    return (normalised(x, scale) + bias.astype(jnp.float32)).astype(x.dtype)


def rms_norm(x: jax.Array, scale: jax.Array, epsilon: float) -> jax.Array:
    """Divides the last dimension by its root mean square in float32 and rounds once: `[..., d]`, `[d]` -> `[..., d]`.

    Example:
        >>> x = jnp.array([3.0, 4.0])
        >>> print((rms_norm(x, jnp.ones(2), 0.0) ** 2).mean().round(5))
        1.0
    """

    @keeping_inputs
    def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.square(y).mean(axis=-1, keepdims=True) + epsilon)
        return (y * scale.astype(jnp.float32)).astype(x.dtype)

    return normalised(x, scale)


def rotate(x: jax.Array, theta: float, positions: jax.Array | None = None) -> jax.Array:
    """Rotary positions: turns each pair of features by an angle that grows with the position.

    Feature `i` is paired with `i + d_head / 2`, as in Hugging Face's weights; the pair turns by `theta ** (-2 i /
    d_head)` per position, so that a product of two rotated vectors depends on their distance alone.

    Args:
        x: queries or keys `[..., T, n_head, d_head]`, `d_head` even.
        theta: the base of the wavelengths.
        positions: `int[..., T]`; by default a token's place in the row.

    Returns:
        The same shape and dtype; angles and rotation are float32.
    """
    half = x.shape[-1] // 2
    frequencies = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    places = jnp.arange(x.shape[-3]) if positions is None else positions
    angles = places.astype(jnp.float32)[..., None, None] * frequencies  # [..., T, 1, d_head / 2]
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def self_attention(
    qkv: jax.Array, n_head: int, *, causal: bool, path: Implementation, segment_ids: jax.Array | None = None
) -> jax.Array:
    """Attention from one product: queries, keys and values side by side in `[B, T, 3 d]` -> `[B, T, d]`."""
    n_rows, n_tokens, width = qkv.shape
    heads = qkv.reshape(n_rows, n_tokens, 3 * n_head, width // (3 * n_head))
    q, k, v = jnp.split(heads, 3, axis=-2)  # each [B, T, n_head, d_head]
    y = attention(q, k, v, causal=causal, segment_ids=segment_ids, implementation=path)
    return y.reshape(n_rows, n_tokens, width // 3)


@keeping_inputs
def gelu(x: jax.Array) -> jax.Array:
    """GELU in its tanh form, as GPT-2 has it."""
    return jax.nn.gelu(x, approximate=True)


@keeping_inputs
def swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """The SwiGLU's gating: `silu(gate) * up`."""
    return jax.nn.silu(gate) * up


def embed(tokens: jax.Array, wte: jax.Array, wpe: jax.Array, positions: jax.Array | None = None) -> jax.Array:
    """Token plus position embedding: `[B, T]` ids, `[vocab, d]`, `[seq_len, d]` -> `[B, T, d]`."""
    return wte[tokens] + (wpe[: tokens.shape[-1]] if positions is None else wpe[positions])


def logits(x: jax.Array, head: jax.Array, head_layout: HeadLayout = "dv") -> jax.Array:
    """Scores from an output layer, `[d, n]` or, as an embedding's table is, `[n, d]`: `[..., d]` -> float32."""
    return jnp.einsum(f"...d,{head_layout}->...v", x, head, preferred_element_type=jnp.float32)
