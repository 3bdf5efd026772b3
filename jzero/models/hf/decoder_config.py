"""The sizes and switches of a decoder that covers the Llama-like families."""

import dataclasses
from typing import Literal, TypeAlias, get_args

from jzero.errors import ConfigError
from jzero.models.checks import check_attention, check_blocks, check_choice, check_multiple, check_positive, check_sizes
from jzero.models.hf.activations import Activation
from jzero.models.hf.rope import Rope
from jzero.ops.request import Implementation

Norms: TypeAlias = Literal["before", "after", "both"]
"""Where each half of a block normalises: what it reads, what it adds to the residual stream, or both."""

QKNorm: TypeAlias = Literal["none", "head", "all"]
"""Whether queries and keys are normalised, and over what: each head, or all heads together."""


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The sizes and the form of a decoder with rotary positions, RMS norms and a gated feed-forward layer.

    Args:
        vocab_size: number of token ids.
        seq_len: longest sequence the model is made for; rotary positions hold no parameters.
        d_model: width of the residual stream.
        n_layer: number of blocks.
        n_head: query heads.
        n_kv_head: key and value heads; must divide `n_head`.
        d_head: width of a head, even; `d_model / n_head` in most models, but not in all.
        d_ff: width of the feed-forward layer.
        norm_epsilon: added to the mean squares.
        rope: the rotary positions.
        local_rope: those of local layers; as `rope` if None.
        local_layers: of each layer whether its attention sees a `window` only; empty for none.
        window: how many tokens a local layer sees.
        activation: of the gate.
        qkv_bias: whether queries, keys and values have a bias.
        out_bias: whether the projection behind the attention has one.
        mlp_bias: whether the feed-forward layer's three have one.
        qk_norm: whether and how queries and keys are normalised.
        norms: where the blocks normalise.
        norm_plus_one: the norms multiply by one plus their weights, as Gemma's.
        scale_embedding: token embeddings are multiplied by the root of `d_model`.
        query_scale: what scores are multiplied by; `d_head ** -0.5` if None.
        attention_softcap: see `jzero.attention`.
        logit_softcap: logits `x` become `cap * tanh(x / cap)`.
        tie_head: the output layer is the token embedding's table.
        pad_token: the token id whose embedding learns nothing from being looked up, as torch has it; None for none.
        attention_dropout: the share of attention weights that training drops.
        init_std: standard deviation of new weights.
        attention: which path of `jzero.attention` the blocks take.
        scan_layers: see `jzero.models.LlamaConfig`.
        remat: see `jzero.models.LlamaConfig`.

    Raises:
        ConfigError: sizes that do not fit.

    Example:
        >>> DecoderConfig(32000, 4096, 4096, 32, 32, 32, 128, 11008).n_params
        6738415616
    """

    vocab_size: int
    seq_len: int
    d_model: int
    n_layer: int
    n_head: int
    n_kv_head: int
    d_head: int
    d_ff: int
    norm_epsilon: float = 1e-6
    rope: Rope = dataclasses.field(default_factory=Rope)
    local_rope: Rope | None = None
    local_layers: tuple[bool, ...] = ()
    window: int | None = None
    activation: Activation = "silu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: QKNorm = "none"
    norms: Norms = "before"
    norm_plus_one: bool = False
    scale_embedding: bool = False
    query_scale: float | None = None
    attention_softcap: float | None = None
    logit_softcap: float | None = None
    tie_head: bool = False
    pad_token: int | None = None
    attention_dropout: float = 0.0
    init_std: float = 0.02
    attention: Implementation = "auto"
    scan_layers: bool = False
    remat: bool | str = False

    def __post_init__(self):
        check_sizes(self, "vocab_size", "seq_len", "d_model", "n_layer", "n_head", "n_kv_head", "d_head", "d_ff")
        check_multiple(self, "n_head", "n_kv_head")
        if self.d_head % 2:
            raise ConfigError(f"model.d_head is {self.d_head}; rotary positions need an even one.")
        check_positive(self, "norm_epsilon")
        check_choice(self, "activation", get_args(Activation))
        check_choice(self, "norms", get_args(Norms))
        check_choice(self, "qk_norm", get_args(QKNorm))
        if self.local_layers and len(self.local_layers) != self.n_layer:
            raise ConfigError(f"model.local_layers names {len(self.local_layers)} layers of {self.n_layer}.")
        if any(self.local_layers):
            check_sizes(self, "window")
        check_blocks(self)
        check_attention(self)

    @property
    def n_params(self) -> int:
        """Number of parameters, a tied output layer counted once."""
        d, d_q, d_kv, d_ff = self.d_model, self.n_head * self.d_head, self.n_kv_head * self.d_head, self.d_ff
        block = 2 * d * (d_q + d_kv) + 3 * d * d_ff + (4 if self.norms == "both" else 2) * d
        block += self.qkv_bias * (d_q + 2 * d_kv) + self.out_bias * d + self.mlp_bias * (2 * d_ff + d)
        block += {"none": 0, "head": 2 * self.d_head, "all": d_q + d_kv}[self.qk_norm]
        return (1 if self.tie_head else 2) * self.vocab_size * d + self.n_layer * block + d

    def is_local(self, layer: int) -> bool:
        """Whether a layer's attention sees a window only."""
        return bool(self.local_layers) and self.local_layers[layer]
