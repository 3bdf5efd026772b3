"""A GPT-2-like decoder in Flax NNX.

It stores float32 parameters and computes in the dtype of the parameters it holds when called, so mixed precision is
the engine's cast and nothing else. Linear weights are `[in, out]`; the output layer is the token embedding's table.
`GPTConfig.scan_layers` chooses between one module per block and blocks stacked under `jax.lax.scan`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.models import ops
from jzero.models.blocks import make_blocks, run_blocks
from jzero.models.gpt_config import GPTConfig
from jzero.models.layers import Block, LayerNorm


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

        def block(rngs: nnx.Rngs) -> Block:
            return Block(
                d,
                config.n_head,
                causal=True,
                residual_std=config.residual_std,
                dropout=config.dropout,
                attention=config.attention,
                rngs=rngs,
            )

        self.h = make_blocks(block, config.n_layer, scan_layers=config.scan_layers, rngs=rngs)
        self.ln_f = LayerNorm(d)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)

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
        x = self.dropout(ops.embed(tokens, self.wte[...], self.wpe[...], positions))  # [B, T, d]
        x = run_blocks(self.h, x, segment_ids, scan_layers=self.config.scan_layers, remat=self.config.remat)
        return output(self.ln_f(x), self.wte[...], "vd")

    def with_output(self, tokens: jax.Array, output: ops.Output, **documents: jax.Array | None) -> jax.Array:
        """Calls the model with something else in the place of logits, such as a loss that never holds all of them."""
        return self(tokens, output, **documents)
