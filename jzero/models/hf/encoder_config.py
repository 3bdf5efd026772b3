"""The sizes and switches of a BERT or RoBERTa."""

import dataclasses
from typing import get_args

from jzero.models.checks import check_attention, check_blocks, check_choice, check_multiple, check_sizes
from jzero.models.hf.activations import Activation
from jzero.ops.request import Implementation


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
    """The sizes and the form of an encoder for classification.

    Args:
        vocab_size: number of token ids.
        n_positions: rows of the position embedding.
        n_types: rows of the token types' embedding.
        d_model: width of the hidden states.
        n_layer: number of blocks.
        n_head: attention heads; must divide `d_model`.
        d_ff: width of the feed-forward layer.
        n_labels: number of classes.
        first_position: row of the first token's position. RoBERTa's is 1 plus `pad_token`, and padding does not count.
        pad_token: the id of padding, whose embedding learns nothing from being looked up; None for none.
        activation: of the feed-forward layer.
        norm_epsilon: added to the variances.
        dropout: rate after the embedding and after both halves of a block.
        attention_dropout: the share of attention weights that training drops.
        head_dropout: rate in front of the classifier.
        drops_first: whether the head drops in front of its first layer too, as RoBERTa's.
        init_std: standard deviation of new weights.
        attention: which path of `jzero.attention` the blocks take.
        scan_layers: see `jzero.models.GPTConfig`.
        remat: see `jzero.models.GPTConfig`.

    Raises:
        ConfigError: sizes that do not fit.

    Example:
        >>> EncoderConfig(30522, 512, 2, 768, 12, 12, 3072, n_labels=2).n_params
        109483778
    """

    vocab_size: int
    n_positions: int
    n_types: int
    d_model: int
    n_layer: int
    n_head: int
    d_ff: int
    n_labels: int
    first_position: int = 0
    pad_token: int | None = None
    activation: Activation = "gelu"
    norm_epsilon: float = 1e-12
    dropout: float = 0.0
    attention_dropout: float = 0.0
    head_dropout: float = 0.0
    drops_first: bool = False
    init_std: float = 0.02
    attention: Implementation = "auto"
    scan_layers: bool = False
    remat: bool | str = False

    def __post_init__(self):
        sizes = "vocab_size", "n_positions", "n_types", "d_model", "n_layer", "n_head", "d_ff", "n_labels"
        check_sizes(self, *sizes)
        check_multiple(self, "d_model", "n_head")
        check_choice(self, "activation", get_args(Activation))
        check_blocks(self)
        check_attention(self)

    @property
    def seq_len(self) -> int:
        """The longest sequence that has positions."""
        return self.n_positions - self.first_position

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        d, block = self.d_model, 4 * self.d_model**2 + 9 * self.d_model + (2 * self.d_model + 1) * self.d_ff
        embeddings = (self.vocab_size + self.n_positions + self.n_types + 2) * d
        return embeddings + self.n_layer * block + d * d + d + (d + 1) * self.n_labels
