"""The GPT of `jzero.models.gpt` in Flax Linen: the same parameters under the same names, the same arithmetic."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from jzero.models import ops
from jzero.models.gpt_config import GPTConfig


class LayerNorm(nn.Module):
    """Layer normalisation with float32 statistics at every dtype."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalises `[..., d]` over its last dimension."""
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],), jnp.float32)
        return ops.layer_norm(x, scale, bias)


class Attention(nn.Module):
    """Causal self-attention."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array, segment_ids: jax.Array | None = None) -> jax.Array:
        """Attends within `[B, T, d]`."""
        qkv = nn.Dense(3 * x.shape[-1], kernel_init=nn.initializers.normal(0.02), name="qkv")(x)
        y = ops.self_attention(
            qkv, self.config.n_head, causal=True, path=self.config.attention, segment_ids=segment_ids
        )
        return nn.Dense(x.shape[-1], kernel_init=nn.initializers.normal(self.config.residual_std), name="proj")(y)


class MLP(nn.Module):
    """The feed-forward layer, four times as wide as the residual stream."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Maps each position of `[B, T, d]` by itself."""
        y = ops.gelu(nn.Dense(4 * x.shape[-1], kernel_init=nn.initializers.normal(0.02), name="fc")(x))
        return nn.Dense(x.shape[-1], kernel_init=nn.initializers.normal(self.config.residual_std), name="proj")(y)


class Block(nn.Module):
    """One pre-norm transformer block."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool, segment_ids: jax.Array | None = None) -> jax.Array:
        """Adds attention and feed-forward layer to the residual stream `[B, T, d]`."""
        dropout = nn.Dropout(self.config.dropout, deterministic=deterministic)
        x = x + dropout(Attention(self.config, name="attn")(LayerNorm(name="ln_1")(x), segment_ids))
        return x + dropout(MLP(self.config, name="mlp")(LayerNorm(name="ln_2")(x)))


class GPTLinen(nn.Module):
    """The whole decoder.

    Args:
        config: sizes and form.

    Example:
        >>> model = GPTLinen(GPTConfig(vocab_size=256, seq_len=16, d_model=32, n_layer=2, n_head=2))
        >>> tokens = jnp.zeros((4, 16), jnp.int32)
        >>> model.apply(model.init(jax.random.key(0), tokens), tokens).shape
        (4, 16, 256)
    """

    config: GPTConfig

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        deterministic: bool | None = None,
        output: ops.Output = ops.logits,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
    ) -> jax.Array:
        """Scores the next token at every position.

        Args:
            tokens: `int32[B, T]`, `T` at most `config.seq_len`.
            deterministic: without dropout; by default, exactly when no `dropout` random stream was passed.
            output: what to return of hidden states `[B, T, d]`, the output layer's weights and their layout.
            segment_ids: `int[B, T]`, the documents of packed rows, which do not see each other.
            positions: `int[B, T]`, each token's place in its document.

        Returns:
            What `output` returns: by default float32 logits `[B, T, vocab_size]`.
        """
        config, d = self.config, self.config.d_model
        if deterministic is None:
            deterministic = not self.has_rng("dropout")
        wte = self.param("wte", nn.initializers.normal(0.02), (config.vocab_size, d), jnp.float32)
        wpe = self.param("wpe", nn.initializers.normal(0.01), (config.seq_len, d), jnp.float32)
        x = nn.Dropout(config.dropout, deterministic=deterministic)(ops.embed(tokens, wte, wpe, positions))
        block = Block
        if config.remat:
            block = nn.remat(Block, policy=config.remat_policy, prevent_cse=not config.scan_layers, static_argnums=(2,))
        if config.scan_layers:
            scan = nn.scan(
                lambda layer, x, _: (layer(x, deterministic, segment_ids), None),
                variable_axes={"params": 0},
                split_rngs={"params": True, "dropout": True},
                length=config.n_layer,
            )
            x, _ = scan(block(config, name="h"), x, None)  # every leaf [n_layer, ...]
        else:
            for i in range(config.n_layer):
                x = block(config, name=f"h_{i}")(x, deterministic, segment_ids)
        return output(LayerNorm(name="ln_f")(x), wte, "vd")

    def with_output(
        self,
        tokens: jax.Array,
        output: ops.Output,
        deterministic: bool | None = None,
        **documents: jax.Array | None,
    ) -> jax.Array:
        """Calls the model with something else in the place of logits, such as a loss that never holds all of them."""
        return self(tokens, deterministic, output, **documents)
