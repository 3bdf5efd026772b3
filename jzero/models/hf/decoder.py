"""A decoder in Flax NNX whose switches cover Llama, Mistral, Qwen, Gemma, SmolLM and OLMo 2.

Its leaves are named as those of `jzero.models.Llama`, with more where a family has more. Parameters last and compute in
the dtype that they come in, as everywhere in this package.
"""

import functools
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.errors import ModelError
from jzero.models import ops
from jzero.models.blocks import make_blocks
from jzero.models.hf.activations import Activation
from jzero.models.hf.attention_dropout import dropping
from jzero.models.hf.decoder_config import DecoderConfig
from jzero.models.hf.gates import GATES
from jzero.models.hf.lookup import looked_up
from jzero.models.hf.rope import cos_sin, turn
from jzero.models.hf.run_layers import layers_run
from jzero.models.layers import Head, linear
from jzero.ops import attention
from jzero.ops.request import Implementation


class Tokens(NamedTuple):
    """What all layers know of the tokens.

    Attributes:
        segment_ids: `int[B, T]`, the documents of packed rows, or None.
        angles: cosines and sines of the rotary positions.
        local_angles: those of local layers.
    """

    segment_ids: jax.Array | None
    angles: tuple[jax.Array, jax.Array]
    local_angles: tuple[jax.Array, jax.Array]


class Norm(nnx.Module):
    """Root-mean-square normalisation, by the weights or by one plus the weights."""

    def __init__(self, d: int, config: DecoderConfig):
        self.epsilon, self.plus_one = config.norm_epsilon, config.norm_plus_one
        self.scale = nnx.Param(jnp.full(d, 0.0 if self.plus_one else 1.0, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        scale = self.scale[...]
        return ops.rms_norm(x, scale.astype(jnp.float32) + 1 if self.plus_one else scale, self.epsilon)


class DecoderAttention(nnx.Module):
    """Causal self-attention with rotary positions, over all tokens before or over a window of them."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.d_head, self.window = config.d_head, config.window
        self.qk_norm, self.softcap = config.qk_norm, config.attention_softcap
        self.scale = config.d_head**-0.5 if config.query_scale is None else config.query_scale
        self.path: Implementation = config.attention
        d, d_q, d_kv = config.d_model, config.n_head * config.d_head, config.n_kv_head * config.d_head
        new = functools.partial(linear, std=config.init_std, rngs=rngs)
        self.q = new(d, d_q, use_bias=config.qkv_bias)
        self.k = new(d, d_kv, use_bias=config.qkv_bias)
        self.v = new(d, d_kv, use_bias=config.qkv_bias)
        self.proj = new(d_q, d, use_bias=config.out_bias)
        if config.qk_norm != "none":
            self.q_norm = Norm(config.d_head if config.qk_norm == "head" else d_q, config)
            self.k_norm = Norm(config.d_head if config.qk_norm == "head" else d_kv, config)
        self.dropout = nnx.Dropout(config.attention_dropout, rngs=rngs if config.attention_dropout else None)

    def __call__(self, x: jax.Array, tokens: Tokens, is_local: bool | jax.Array) -> jax.Array:
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.qk_norm == "all":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (y.reshape(*y.shape[:-1], -1, self.d_head) for y in (q, k, v))
        if self.qk_norm == "head":
            q, k = self.q_norm(q), self.k_norm(k)
        angles = _either(is_local, tokens.local_angles, tokens.angles)
        q, k = turn(q, *angles), turn(k, *angles)
        attend = functools.partial(
            attention,
            causal=True,
            segment_ids=tokens.segment_ids,
            scale=self.scale,
            softcap=self.softcap,
            implementation=self.path,
            **dropping(self.dropout),
        )
        within = functools.partial(attend, window=self.window)
        if isinstance(is_local, bool):
            y = (within if is_local else attend)(q, k, v)
        else:  # in a loop over layers of both kinds
            y = jax.lax.cond(is_local, within, attend, q, k, v)
        return self.proj(y.reshape(*x.shape[:-1], -1))


def _either(is_local: bool | jax.Array, local: tuple[jax.Array, ...], others: tuple[jax.Array, ...]) -> tuple:
    if isinstance(is_local, bool):
        return local if is_local else others
    return others if local is others else tuple(jnp.where(is_local, a, b) for a, b in zip(local, others, strict=True))


class GatedMLP(nnx.Module):
    """The gated feed-forward layer."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        new = functools.partial(linear, std=config.init_std, rngs=rngs, use_bias=config.mlp_bias)
        self.gate = new(config.d_model, config.d_ff)
        self.up = new(config.d_model, config.d_ff)
        self.down = new(config.d_ff, config.d_model)
        self.activation: Activation = config.activation

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(GATES[self.activation](self.gate(x), self.up(x)))


class DecoderBlock(nnx.Module):
    """One block: attention and feed-forward layer, each with the norms that the family has."""

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.norms = config.norms
        self.attn = DecoderAttention(config, rngs=rngs)
        self.mlp = GatedMLP(config, rngs=rngs)
        if config.norms != "after":
            self.norm_1, self.norm_2 = Norm(config.d_model, config), Norm(config.d_model, config)
        if config.norms != "before":
            self.after_1, self.after_2 = Norm(config.d_model, config), Norm(config.d_model, config)

    def __call__(self, x: jax.Array, tokens: Tokens, is_local: bool | jax.Array) -> jax.Array:
        first, last = self.norms != "after", self.norms != "before"
        y = self.attn(self.norm_1(x) if first else x, tokens, is_local)
        x = x + (self.after_1(y) if last else y)
        y = self.mlp(self.norm_2(x) if first else x)
        return x + (self.after_2(y) if last else y)


class Decoder(nnx.Module):
    """The whole decoder.

    Args:
        config: sizes and form.
        rngs: streams `params` and, with dropout, `dropout`.

    Example:
        >>> config = DecoderConfig(256, 16, d_model=32, n_layer=2, n_head=4, n_kv_head=2, d_head=16, d_ff=64)
        >>> Decoder(config, rngs=nnx.Rngs(0))(jnp.zeros((4, 16), jnp.int32)).shape
        (4, 16, 256)
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs):
        self.config = config
        shape = (config.vocab_size, config.d_model)
        self.wte = nnx.Param(nnx.initializers.normal(config.init_std)(rngs.params(), shape, jnp.float32))
        self.h = make_blocks(
            lambda rngs: DecoderBlock(config, rngs=rngs), config.n_layer, scan_layers=config.scan_layers, rngs=rngs
        )
        self.norm_f = Norm(config.d_model, config)
        if not config.tie_head:
            self.head = Head(config.d_model, config.vocab_size, config.init_std, use_bias=False, rngs=rngs)

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
            output: what to return of hidden states `[B, T, d]`, the output layer's weights and their layout, before
                `logit_softcap`.
            segment_ids: `int[B, T]`, the documents of packed rows, which do not see each other.
            positions: `int[B, T]`, where tokens stand in their documents; by default in their rows.

        Returns:
            What `output` returns: by default float32 logits `[B, T, vocab_size]`.
        """
        config = self.config
        if tokens.shape[-1] > config.seq_len:
            raise ModelError(f"the batch has {tokens.shape[-1]} tokens a row; the model is made for {config.seq_len}.")
        x = looked_up(self.wte[...], tokens, config.pad_token)
        if config.scale_embedding:
            x = x * jnp.asarray(config.d_model**0.5, x.dtype)  # rounded, as in the weights' own dtype
        places = jnp.arange(tokens.shape[-1], dtype=jnp.int32)[None] if positions is None else positions
        angles = cos_sin(config.rope, config.d_head, places)
        local = angles if config.local_rope is None else cos_sin(config.local_rope, config.d_head, places)
        about = Tokens(segment_ids, angles, local)
        x = layers_run(
            self.h,
            x,
            lambda layer, x, kind: cast(DecoderBlock, layer)(x, about, kind),
            scan_layers=config.scan_layers,
            remat=config.remat,
            kinds=[config.is_local(layer) for layer in range(config.n_layer)],
        )
        x, cap = self.norm_f(x), config.logit_softcap
        y = output(x, self.wte[...], "vd") if config.tie_head else output(x, self.head.kernel[...], "dv")
        return y if cap is None or output is not ops.logits else cap * jnp.tanh(y / cap)

    @property
    def logit_softcap(self) -> float | None:
        """To what logits are capped, see `jzero.cross_entropy`; what is passed as `output` has to do it."""
        return self.config.logit_softcap

    def with_output(self, tokens: jax.Array, output: ops.Output, **about: jax.Array | None) -> jax.Array:
        """Calls the model with something else in the place of logits, such as a loss that never holds all of them."""
        return self(tokens, output, **about)
