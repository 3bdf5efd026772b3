"""GPT-2 as its published checkpoints have it: `jzero.models.GPT` with what their configurations may change.

Leaves are named as the GPT's, so that checkpoints of one fit the other where the forms agree.
"""

import functools
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.errors import ModelError
from jzero.models import ops
from jzero.models.blocks import make_blocks
from jzero.models.hf.activations import Activation
from jzero.models.hf.attention_dropout import dropping
from jzero.models.hf.gates import ACTIVATIONS
from jzero.models.hf.gpt2_config import GPT2Config
from jzero.models.hf.run_layers import layers_run
from jzero.models.layers import Head, LayerNorm, linear
from jzero.ops import attention
from jzero.ops.request import Implementation


class GPT2Attention(nnx.Module):
    """Causal self-attention: one product for queries, keys and values."""

    def __init__(self, config: GPT2Config, *, rngs: nnx.Rngs):
        self.n_head = config.n_head
        self.scale = (config.d_model // config.n_head) ** -0.5 if config.scale_attention else 1.0
        self.path: Implementation = config.attention
        self.qkv = linear(config.d_model, 3 * config.d_model, config.init_std, rngs)
        self.proj = linear(config.d_model, config.d_model, config.init_std / (2 * config.n_layer) ** 0.5, rngs)
        self.dropout = nnx.Dropout(config.attention_dropout, rngs=rngs if config.attention_dropout else None)

    def __call__(self, x: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
        qkv = self.qkv(x)
        q, k, v = jnp.split(qkv.reshape(*qkv.shape[:-1], 3 * self.n_head, -1), 3, axis=-2)
        y = attention(
            q, k, v, causal=True, segment_ids=segment_ids, scale=self.scale,
            implementation=self.path, **dropping(self.dropout),
        )  # fmt: skip
        return self.proj(y.reshape(x.shape))


class GPT2MLP(nnx.Module):
    """The feed-forward layer."""

    def __init__(self, config: GPT2Config, *, rngs: nnx.Rngs):
        self.fc = linear(config.d_model, config.d_ff, config.init_std, rngs)
        self.proj = linear(config.d_ff, config.d_model, config.init_std / (2 * config.n_layer) ** 0.5, rngs)
        self.activation: Activation = config.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.proj(ACTIVATIONS[self.activation](self.fc(x)))


class GPT2Block(nnx.Module):
    """One pre-norm block."""

    def __init__(self, config: GPT2Config, *, rngs: nnx.Rngs):
        self.ln_1 = LayerNorm(config.d_model, config.norm_epsilon)
        self.attn = GPT2Attention(config, rngs=rngs)
        self.ln_2 = LayerNorm(config.d_model, config.norm_epsilon)
        self.mlp = GPT2MLP(config, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)

    def __call__(self, x: jax.Array, segment_ids: jax.Array | None) -> jax.Array:
        x = x + self.dropout(self.attn(self.ln_1(x), segment_ids))
        return x + self.dropout(self.mlp(self.ln_2(x)))


class GPT2(nnx.Module):
    """The whole decoder.

    Args:
        config: sizes and form.
        rngs: streams `params` and, with dropout, `dropout`.

    Example:
        >>> config = GPT2Config(256, 16, d_model=32, n_layer=2, n_head=2, d_ff=128)
        >>> GPT2(config, rngs=nnx.Rngs(0))(jnp.zeros((4, 16), jnp.int32)).shape
        (4, 16, 256)
    """

    def __init__(self, config: GPT2Config, *, rngs: nnx.Rngs):
        self.config = config
        d, std = config.d_model, config.init_std
        normal = nnx.initializers.normal(std)
        self.wte = nnx.Param(normal(rngs.params(), (config.vocab_size, d), jnp.float32))
        self.wpe = nnx.Param(normal(rngs.params(), (config.seq_len, d), jnp.float32))
        new = functools.partial(GPT2Block, config)
        self.h = make_blocks(lambda rngs: new(rngs=rngs), config.n_layer, scan_layers=config.scan_layers, rngs=rngs)
        self.ln_f = LayerNorm(d, config.norm_epsilon)
        if not config.tie_head:
            self.head = Head(d, config.vocab_size, std, use_bias=False, rngs=rngs)
        rate = config.embedding_dropout
        self.dropout = nnx.Dropout(rate, rngs=rngs if rate else None)

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
            positions: `int[B, T]`, where tokens stand in their documents; by default in their rows.

        Returns:
            What `output` returns: by default float32 logits `[B, T, vocab_size]`.
        """
        config, n_tokens = self.config, tokens.shape[-1]
        if n_tokens > config.seq_len:
            raise ModelError(f"the batch has {n_tokens} tokens a row; the model is made for {config.seq_len}.")
        places = self.wpe[:n_tokens] if positions is None else self.wpe[...][positions]
        x = layers_run(
            self.h,
            self.dropout(self.wte[...][tokens] + places),
            lambda layer, x, _: cast(GPT2Block, layer)(x, segment_ids),
            scan_layers=config.scan_layers,
            remat=config.remat,
        )
        head = (self.wte[...], "vd") if config.tie_head else (self.head.kernel[...], "dv")
        return output(self.ln_f(x), *head)

    def with_output(self, tokens: jax.Array, output: ops.Output, **about: jax.Array | None) -> jax.Array:
        """Calls the model with something else in the place of logits, such as a loss that never holds all of them."""
        return self(tokens, output, **about)
