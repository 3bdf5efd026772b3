"""A GPT-2-like decoder in Flax NNX.

It stores float32 parameters and computes in the dtype of the parameters it holds when called, so mixed precision is
the engine's cast and nothing else. Linear weights are `[in, out]`; the output layer is the token embedding's table.
`GPTConfig.scan_layers` chooses between one module per block and blocks stacked under `jax.lax.scan`.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.models import ops
from jzero.models.gpt_config import GPTConfig


class LayerNorm(nnx.Module):
    """Layer normalisation with float32 statistics at every dtype.

    `nnx.LayerNorm` mixes dtypes for that, which strict promotion refuses.
    """

    def __init__(self, d: int):
        self.scale = nnx.Param(jnp.ones(d, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(d, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return ops.layer_norm(x, self.scale[...], self.bias[...])


def _linear(d_in: int, d_out: int, std: float, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(d_in, d_out, kernel_init=nnx.initializers.normal(std), rngs=rngs)


class Attention(nnx.Module):
    """Causal self-attention: one product for queries, keys and values, one back to the residual stream."""

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        self.n_head = config.n_head
        self.qkv = _linear(config.d_model, 3 * config.d_model, 0.02, rngs)
        self.proj = _linear(config.d_model, config.d_model, config.residual_std, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.proj(ops.causal_attention(self.qkv(x), self.n_head))


class MLP(nnx.Module):
    """The feed-forward layer, four times as wide as the residual stream."""

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        self.fc = _linear(config.d_model, 4 * config.d_model, 0.02, rngs)
        self.proj = _linear(4 * config.d_model, config.d_model, config.residual_std, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.proj(ops.gelu(self.fc(x)))


class Block(nnx.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        self.ln_1 = LayerNorm(config.d_model)
        self.attn = Attention(config, rngs=rngs)
        self.ln_2 = LayerNorm(config.d_model)
        self.mlp = MLP(config, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.dropout(self.attn(self.ln_1(x)))
        return x + self.dropout(self.mlp(self.ln_2(x)))


class GPT(nnx.Module):
    """The whole decoder.

    Args:
        config: sizes and form.
        rngs: streams `params` and, with dropout, `dropout`.

    Example:
        >>> config = GPTConfig(vocab_size=256, seq_len=16, d_model=32, n_layer=2, n_head=2)
        >>> GPT(config, rngs=nnx.Rngs(0))(jnp.zeros((4, 16), jnp.int32)).shape
        (4, 16, 256)
    """

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        self.config = config
        d = config.d_model
        self.wte = nnx.Param(nnx.initializers.normal(0.02)(rngs.params(), (config.vocab_size, d), jnp.float32))
        self.wpe = nnx.Param(nnx.initializers.normal(0.01)(rngs.params(), (config.seq_len, d), jnp.float32))
        if config.scan_layers:

            @nnx.split_rngs(splits=config.n_layer)
            @nnx.vmap(in_axes=0, out_axes=0)
            def stacked_blocks(rngs: nnx.Rngs) -> Block:
                return Block(config, rngs=rngs)

            self.h: Any = stacked_blocks(rngs)  # every leaf [n_layer, ...]
        else:
            self.h = nnx.List([Block(config, rngs=rngs) for _ in range(config.n_layer)])
        self.ln_f = LayerNorm(d)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Scores the next token at every position.

        Args:
            tokens: `int32[B, T]`, `T` at most `config.seq_len`.

        Returns:
            float32 logits `[B, T, vocab_size]`.
        """
        x = self.dropout(ops.embed(tokens, self.wte[...], self.wpe[...]))  # [B, T, d]
        if self.config.scan_layers:
            x = self._scan_blocks(x)
        else:
            for block in self.h:
                x = self._checkpointed(block, x) if self.config.remat else block(x)
        return ops.tied_logits(self.ln_f(x), self.wte[...])

    # nnx.scan and nnx.remat return every variable they were given, parameters included, which would keep gathered
    # weights alive. Only what a block can change, its random streams, comes back from the transforms below.

    def _scan_blocks(self, x: jax.Array) -> jax.Array:
        graphdef, params, rest = nnx.split(self.h, nnx.Param, ...)
        run = functools.partial(_run_block, graphdef)
        if self.config.remat:
            run = jax.checkpoint(run, policy=self.config.remat_policy, prevent_cse=False)
        x, rest = jax.lax.scan(lambda x, layer: run(layer[0], layer[1], x), x, (params, rest))
        nnx.update(self.h, rest)
        return x

    def _checkpointed(self, block: Block, x: jax.Array) -> jax.Array:
        graphdef, params, rest = nnx.split(block, nnx.Param, ...)
        run = jax.checkpoint(functools.partial(_run_block, graphdef), policy=self.config.remat_policy)
        x, rest = run(params, rest, x)
        nnx.update(block, rest)
        return x


def _run_block(graphdef, params, rest, x: jax.Array):
    """Rebuilds a block from its parts and runs it; returns the output and the block's changed non-parameters."""
    block = nnx.merge(graphdef, params, rest)
    x = block(x)
    return x, nnx.state(block, nnx.Not(nnx.Param))
