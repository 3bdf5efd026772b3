"""Layers that several NNX models are made of; each computes in the dtype of the parameters it holds when called.

The normalisations take their statistics in float32 at every dtype. Flax's own mix dtypes for that, which strict
promotion refuses, or which widens everything that follows.
"""

from typing import TypeVar, cast

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.models import ops
from jzero.ops.request import Implementation

Arrays = TypeVar("Arrays", bound=tuple)


def linear(d_in: int, d_out: int, std: float, rngs: nnx.Rngs, *, use_bias: bool = True) -> nnx.Linear:
    """A linear layer, its weights `[d_in, d_out]` drawn with this standard deviation."""
    return nnx.Linear(d_in, d_out, use_bias=use_bias, kernel_init=nnx.initializers.normal(std), rngs=rngs)


class LayerNorm(nnx.Module):
    """Layer normalisation with float32 statistics."""

    def __init__(self, d: int, epsilon: float = ops.LAYER_NORM_EPSILON):
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.ones(d, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(d, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return ops.layer_norm(x, self.scale[...], self.bias[...], self.epsilon)


class RMSNorm(nnx.Module):
    """Root-mean-square normalisation with float32 statistics."""

    def __init__(self, d: int, epsilon: float):
        self.epsilon = epsilon
        self.scale = nnx.Param(jnp.ones(d, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return ops.rms_norm(x, self.scale[...], self.epsilon)


class BatchNorm(nnx.BatchNorm):
    """Batch normalisation over all but the last dimension, in float32, rounded once.

    Being an `nnx.BatchNorm`, it takes its statistics over all devices when jzero trains it.
    """

    def __init__(self, d: int, *, rngs: nnx.Rngs):
        super().__init__(d, momentum=0.9, promote_dtype=_in_float32, rngs=rngs)

    def __call__(self, x: jax.Array, *args: bool | None, **kwargs: jax.Array | None) -> jax.Array:
        """Normalises `[..., d]`, and in training moves the running statistics."""
        return super().__call__(x, *args, **kwargs).astype(x.dtype)


def _in_float32(arrays: Arrays, **_: object) -> Arrays:
    return cast(Arrays, tuple(None if x is None else x.astype(jnp.float32) for x in arrays))


class Head(nnx.Module):
    """A linear layer whose outputs are float32 logits."""

    def __init__(self, d: int, n_out: int, std: float, *, use_bias: bool, rngs: nnx.Rngs):
        self.kernel = nnx.Param(nnx.initializers.normal(std)(rngs.params(), (d, n_out), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(n_out, jnp.float32)) if use_bias else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        y = ops.logits(x, self.kernel[...])
        return y if self.bias is None else y + self.bias[...].astype(jnp.float32)


class Attention(nnx.Module):
    """Self-attention: one product for queries, keys and values, one back to the residual stream."""

    def __init__(self, d: int, n_head: int, *, causal: bool, residual_std: float, path: Implementation, rngs: nnx.Rngs):
        self.n_head, self.causal = n_head, causal
        self.path: Implementation = path
        self.qkv = linear(d, 3 * d, 0.02, rngs)
        self.proj = linear(d, d, residual_std, rngs)

    def __call__(self, x: jax.Array, segment_ids: jax.Array | None = None) -> jax.Array:
        qkv = self.qkv(x)
        return self.proj(
            ops.self_attention(qkv, self.n_head, causal=self.causal, path=self.path, segment_ids=segment_ids)
        )


class MLP(nnx.Module):
    """The feed-forward layer, four times as wide as the residual stream."""

    def __init__(self, d: int, *, residual_std: float, rngs: nnx.Rngs):
        self.fc = linear(d, 4 * d, 0.02, rngs)
        self.proj = linear(4 * d, d, residual_std, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.proj(ops.gelu(self.fc(x)))


class Block(nnx.Module):
    """One pre-norm transformer block, as the GPT and the vision transformer have it.

    Args:
        d: width of the residual stream.
        n_head: attention heads.
        causal: whether a position sees only itself and those before it.
        residual_std: standard deviation of the projections that write to the residual stream.
        dropout: rate after both halves.
        attention: see `jzero.attention`'s `implementation`.
        epsilon: of the layer normalisations.
        rngs: streams `params` and, with dropout, `dropout`.
    """

    def __init__(
        self,
        d: int,
        n_head: int,
        *,
        causal: bool,
        residual_std: float,
        dropout: float,
        attention: Implementation = "auto",
        epsilon: float = ops.LAYER_NORM_EPSILON,
        rngs: nnx.Rngs,
    ):
        self.ln_1 = LayerNorm(d, epsilon)
        self.attn = Attention(d, n_head, causal=causal, residual_std=residual_std, path=attention, rngs=rngs)
        self.ln_2 = LayerNorm(d, epsilon)
        self.mlp = MLP(d, residual_std=residual_std, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs if dropout else None)

    def __call__(self, x: jax.Array, segment_ids: jax.Array | None = None) -> jax.Array:
        x = x + self.dropout(self.attn(self.ln_1(x), segment_ids))
        return x + self.dropout(self.mlp(self.ln_2(x)))
