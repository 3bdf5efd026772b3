"""BERT and RoBERTa for classification: an encoder that normalises after each half of a block, and a head on token 0."""

import functools
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.errors import ModelError
from jzero.models.blocks import make_blocks
from jzero.models.hf.activations import Activation
from jzero.models.hf.attention_dropout import dropping
from jzero.models.hf.encoder_config import EncoderConfig
from jzero.models.hf.gates import ACTIVATIONS
from jzero.models.hf.lookup import looked_up
from jzero.models.hf.run_layers import layers_run
from jzero.models.layers import Head, LayerNorm, linear
from jzero.ops import attention
from jzero.ops.request import Implementation


class EncoderAttention(nnx.Module):
    """Self-attention over all tokens that count."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.n_head = config.n_head
        self.path: Implementation = config.attention
        new = functools.partial(linear, config.d_model, config.d_model, config.init_std, rngs)
        self.q, self.k, self.v, self.proj = new(), new(), new(), new()
        self.dropout = nnx.Dropout(config.attention_dropout, rngs=rngs if config.attention_dropout else None)

    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        q, k, v = (y.reshape(*y.shape[:-1], self.n_head, -1) for y in (self.q(x), self.k(x), self.v(x)))
        y = attention(q, k, v, segment_ids=mask, implementation=self.path, **dropping(self.dropout))
        return self.proj(y.reshape(x.shape))


class EncoderBlock(nnx.Module):
    """One block, each half of it normalised after it is added."""

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        d, std = config.d_model, config.init_std
        self.attn = EncoderAttention(config, rngs=rngs)
        self.ln_1 = LayerNorm(d, config.norm_epsilon)
        self.fc = linear(d, config.d_ff, std, rngs)
        self.proj = linear(config.d_ff, d, std, rngs)
        self.ln_2 = LayerNorm(d, config.norm_epsilon)
        self.activation: Activation = config.activation
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)

    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        x = self.ln_1(x + self.dropout(self.attn(x, mask)))
        return self.ln_2(x + self.dropout(self.proj(ACTIVATIONS[self.activation](self.fc(x)))))


class Encoder(nnx.Module):
    """The whole encoder with its classifier.

    Args:
        config: sizes and form.
        rngs: streams `params` and, with dropout, `dropout`.

    Example:
        >>> config = EncoderConfig(256, 16, 2, d_model=32, n_layer=2, n_head=2, d_ff=64, n_labels=3)
        >>> Encoder(config, rngs=nnx.Rngs(0))(jnp.zeros((4, 16), jnp.int32)).shape
        (4, 3)
    """

    def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        d, std = config.d_model, config.init_std
        table = lambda rows: nnx.Param(nnx.initializers.normal(std)(rngs.params(), (rows, d), jnp.float32))
        self.wte, self.wpe = table(config.vocab_size), table(config.n_positions)
        self.types = table(config.n_types)
        self.ln_e = LayerNorm(d, config.norm_epsilon)
        new = functools.partial(EncoderBlock, config)
        self.h = make_blocks(lambda rngs: new(rngs=rngs), config.n_layer, scan_layers=config.scan_layers, rngs=rngs)
        self.pooler = linear(d, d, std, rngs)
        self.head = Head(d, config.n_labels, std, use_bias=True, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)
        self.head_dropout = nnx.Dropout(config.head_dropout, rngs=rngs if config.head_dropout else None)

    def __call__(
        self, tokens: jax.Array, *, mask: jax.Array | None = None, types: jax.Array | None = None
    ) -> jax.Array:
        """Scores the classes of each row.

        Args:
            tokens: `int32[B, T]`, the first of which stands for the row.
            mask: `int[B, T]`, 1 for tokens and 0 for padding; without it every token counts.
            types: `int[B, T]`, such as which of two sentences a token belongs to; all 0 by default.

        Returns:
            float32 logits `[B, n_labels]`.
        """
        config, n_tokens = self.config, tokens.shape[-1]
        if n_tokens > config.seq_len:
            raise ModelError(f"the batch has {n_tokens} tokens a row; the model is made for {config.seq_len}.")
        x = looked_up(self.wte[...], tokens, config.pad_token) + (
            self.types[0] if types is None else self.types[...][types]
        )
        x = self.dropout(self.ln_e(x + self._positions(tokens)))
        counted = None if mask is None else mask.astype(jnp.int32)
        x = layers_run(
            self.h,
            x,
            lambda layer, x, _: cast(EncoderBlock, layer)(x, counted),
            scan_layers=config.scan_layers,
            remat=config.remat,
        )
        x = self.head_dropout(x[:, 0]) if config.drops_first else x[:, 0]
        return self.head(self.head_dropout(jnp.tanh(self.pooler(x))))

    def _positions(self, tokens: jax.Array) -> jax.Array:
        """The embedding of each token's position: its place among those that are no padding, where that is known."""
        first, pad = self.config.first_position, self.config.pad_token
        if not first:
            return self.wpe[: tokens.shape[-1]]
        counts = (tokens != pad).astype(jnp.int32)
        return looked_up(self.wpe[...], jnp.cumsum(counts, axis=-1) * counts + first - 1, first - 1)
