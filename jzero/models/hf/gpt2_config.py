"""The sizes and switches of a GPT-2."""

import dataclasses
from typing import get_args

from jzero.models.checks import check_attention, check_blocks, check_choice, check_multiple, check_sizes
from jzero.models.hf.activations import Activation
from jzero.ops.request import Implementation


@dataclasses.dataclass(frozen=True)
class GPT2Config:
    """The sizes and the form of a GPT-2.

    Args:
        vocab_size: number of token ids.
        seq_len: longest sequence the position embedding covers.
        d_model: width of the residual stream.
        n_layer: number of blocks.
        n_head: attention heads; must divide `d_model`.
        d_ff: width of the feed-forward layer.
        activation: of the feed-forward layer.
        norm_epsilon: added to the variances.
        tie_head: the output layer is the token embedding's table.
        scale_attention: whether scores are divided by the root of the heads' width.
        dropout: rate after both halves of a block.
        embedding_dropout: rate after the embedding.
        attention_dropout: the share of attention weights that training drops.
        init_std: standard deviation of new weights.
        attention: which path of `jzero.attention` the blocks take.
        scan_layers: see `jzero.models.GPTConfig`.
        remat: see `jzero.models.GPTConfig`.

    Raises:
        ConfigError: sizes that do not fit.

    Example:
        >>> GPT2Config(50257, 1024, 768, 12, 12, 3072).n_params
        124439808
    """

    vocab_size: int
    seq_len: int
    d_model: int
    n_layer: int
    n_head: int
    d_ff: int
    activation: Activation = "gelu_tanh"
    norm_epsilon: float = 1e-5
    tie_head: bool = True
    scale_attention: bool = True
    dropout: float = 0.0
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    init_std: float = 0.02
    attention: Implementation = "auto"
    scan_layers: bool = False
    remat: bool | str = False

    def __post_init__(self):
        check_sizes(self, "vocab_size", "seq_len", "d_model", "n_layer", "n_head", "d_ff")
        check_multiple(self, "d_model", "n_head")
        check_choice(self, "activation", get_args(Activation))
        check_blocks(self)
        check_attention(self)

    @property
    def n_params(self) -> int:
        """Number of parameters, a tied output layer counted once."""
        d, block = self.d_model, 4 * self.d_model**2 + 9 * self.d_model + (2 * self.d_model + 1) * self.d_ff
        return ((1 if self.tie_head else 2) * self.vocab_size + self.seq_len + 2) * d + self.n_layer * block
