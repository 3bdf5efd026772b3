"""A Llama-like decoder in Flax NNX: RMSNorm, rotary positions, grouped-query attention and SwiGLU, without biases.

Like the GPT it stores float32 parameters, computes in the dtype of those it holds when called, and has its blocks one
by one or stacked under `jax.lax.scan`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.errors import ModelError
from jzero.models import ops
from jzero.models.blocks import make_blocks, run_blocks
from jzero.models.layers import Head, RMSNorm, linear
from jzero.models.llama_config import LlamaConfig
from jzero.ops import attention
from jzero.ops.request import Implementation


class GroupedQueryAttention(nnx.Module):
    """Causal self-attention with rotary positions, in which several query heads share a key and a value head."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        self.d_head, self.theta = config.d_head, config.rope_theta
        self.path: Implementation = config.attention
        d, d_kv = config.d_model, config.d_kv
        self.q = linear(d, d, 0.02, rngs, use_bias=False)
        self.k = linear(d, d_kv, 0.02, rngs, use_bias=False)
        self.v = linear(d, d_kv, 0.02, rngs, use_bias=False)
        self.proj = linear(d, d, config.residual_std, rngs, use_bias=False)

    def __call__(self, x: jax.Array, documents: ops.Documents = ops.ONE_DOCUMENT) -> jax.Array:
        segment_ids, positions = documents
        q, k, v = (y.reshape(*y.shape[:-1], -1, self.d_head) for y in (self.q(x), self.k(x), self.v(x)))
        q, k = ops.rotate(q, self.theta, positions), ops.rotate(k, self.theta, positions)
        y = attention(q, k, v, causal=True, segment_ids=segment_ids, implementation=self.path)
        return self.proj(y.reshape(x.shape))


class SwiGLU(nnx.Module):
    """The gated feed-forward layer."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        self.gate = linear(config.d_model, config.d_hidden, 0.02, rngs, use_bias=False)
        self.up = linear(config.d_model, config.d_hidden, 0.02, rngs, use_bias=False)
        self.down = linear(config.d_hidden, config.d_model, config.residual_std, rngs, use_bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(ops.swiglu(self.gate(x), self.up(x)))


class LlamaBlock(nnx.Module):
    """One pre-norm block."""

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        self.norm_1 = RMSNorm(config.d_model, config.norm_epsilon)
        self.attn = GroupedQueryAttention(config, rngs=rngs)
        self.norm_2 = RMSNorm(config.d_model, config.norm_epsilon)
        self.mlp = SwiGLU(config, rngs=rngs)

    def __call__(self, x: jax.Array, documents: ops.Documents = ops.ONE_DOCUMENT) -> jax.Array:
        x = x + self.attn(self.norm_1(x), documents)
        return x + self.mlp(self.norm_2(x))


class Llama(nnx.Module):
    """The whole decoder.

    Args:
        config: sizes and form.
        rngs: the stream `params`.

    Example:
        >>> config = LlamaConfig(vocab_size=256, seq_len=16, d_model=32, n_layer=2, n_head=4, n_kv_head=2, d_ff=64)
        >>> Llama(config, rngs=nnx.Rngs(0))(jnp.zeros((4, 16), jnp.int32)).shape
        (4, 16, 256)
    """

    def __init__(self, config: LlamaConfig, *, rngs: nnx.Rngs):
        self.config = config
        shape = (config.vocab_size, config.d_model)
        self.wte = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), shape, jnp.float32))
        self.h = make_blocks(
            lambda rngs: LlamaBlock(config, rngs=rngs), config.n_layer, scan_layers=config.scan_layers, rngs=rngs
        )
        self.norm_f = RMSNorm(config.d_model, config.norm_epsilon)
        if not config.tie_head:
            self.head = Head(config.d_model, config.vocab_size, 0.02, use_bias=False, rngs=rngs)

    def __call__(
        self,
        tokens: jax.Array,
        output: ops.Output = ops.logits,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Scores the next token at every position.

        Args:
            tokens: `int32[B, T]`, `T` at most `config.seq_len`.
            output: what to return of hidden states `[B, T, d]`, the output layer's weights and their layout.
            segment_ids: `int[B, T]`, the documents of packed rows, which do not see each other.
            positions: `int[B, T]`, each token's place in its document.

        Returns:
            What `output` returns: by default float32 logits `[B, T, vocab_size]`.
        """
        config = self.config
        if tokens.shape[-1] > config.seq_len:
            raise ModelError(f"the batch has {tokens.shape[-1]} tokens a row; model.seq_len is {config.seq_len}.")
        documents = ops.Documents(segment_ids, positions)
        x = run_blocks(self.h, self.wte[...][tokens], documents, scan_layers=config.scan_layers, remat=config.remat)
        x = self.norm_f(x)
        return output(x, self.wte[...], "vd") if config.tie_head else output(x, self.head.kernel[...], "dv")

    def with_output(self, tokens: jax.Array, output: ops.Output, **documents: jax.Array | None) -> jax.Array:
        """Calls the model with something else in the place of logits, such as a loss that never holds all of them."""
        return self(tokens, output, **documents)
