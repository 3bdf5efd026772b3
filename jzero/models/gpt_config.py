"""The sizes of a GPT, shared by its NNX and its Linen form."""

import dataclasses
from collections.abc import Callable

from jzero.models.checks import check_attention, check_blocks, check_dropout, check_multiple, check_sizes, remat_policy
from jzero.ops.request import Implementation


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """The sizes and the form of a GPT-2-like decoder.

    Args:
        vocab_size: number of token ids.
        seq_len: longest sequence the position embedding covers.
        d_model: width of the residual stream; the feed-forward layer is four times as wide.
        n_layer: number of blocks.
        n_head: attention heads; must divide `d_model`.
        scan_layers: stack the blocks' parameters into `[n_layer, ...]` leaves and run them under `jax.lax.scan`:
            compile time stays flat as the model grows deeper.
        remat: recompute each block in the backward pass instead of keeping its activations. True recomputes
            everything; a string names one of `jax.checkpoint_policies`.
        dropout: rate after the embedding and after both halves of a block; 0 needs no random stream.
        attention: which path of `jzero.attention` the blocks take; "auto" takes cuDNN's on GPUs where it can.

    Raises:
        ConfigError: if a size is not positive, `n_head` does not divide `d_model`, or the policy is unknown.

    Example:
        >>> GPTConfig(vocab_size=50257, seq_len=1024, d_model=768, n_layer=12, n_head=12).n_params
        124439808
    """

    vocab_size: int
    seq_len: int
    d_model: int
    n_layer: int
    n_head: int
    scan_layers: bool = False
    remat: bool | str = False
    dropout: float = 0.0
    attention: Implementation = "auto"

    def __post_init__(self):
        check_sizes(self, "vocab_size", "seq_len", "d_model", "n_layer", "n_head")
        check_multiple(self, "d_model", "n_head")
        check_blocks(self)
        check_dropout(self)
        check_attention(self)

    @property
    def n_params(self) -> int:
        """Number of parameters, the tied output layer counted once."""
        d = self.d_model
        return (self.vocab_size + self.seq_len) * d + self.n_layer * (12 * d * d + 13 * d) + 2 * d

    @property
    def residual_std(self) -> float:
        """Standard deviation of the projections that write to the residual stream, as GPT-2 initialises them."""
        return 0.02 / (2 * self.n_layer) ** 0.5

    @property
    def remat_policy(self) -> Callable | None:
        """The `policy` argument of `jax.checkpoint`; None recomputes everything."""
        return remat_policy(self.remat)
