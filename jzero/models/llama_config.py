"""The sizes of a Llama."""

import dataclasses

from jzero.errors import ConfigError
from jzero.models.checks import check_attention, check_blocks, check_flags, check_multiple, check_positive, check_sizes
from jzero.ops.request import Implementation


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """The sizes and the form of a Llama-like decoder.

    Args:
        vocab_size: number of token ids.
        seq_len: longest sequence the model is made for; rotary positions hold no parameters.
        d_model: width of the residual stream.
        n_layer: number of blocks.
        n_head: query heads; must divide `d_model` into heads of even width.
        n_kv_head: key and value heads, each serving `n_head / n_kv_head` query heads; as many as query heads if None.
        d_ff: width of the feed-forward layer; if None 8/3 of `d_model`, rounded up to a multiple of 256, as in Llama 2.
        rope_theta: base of the rotary positions' wavelengths.
        norm_epsilon: added to the mean squares.
        tie_head: the output layer is the token embedding's table.
        attention: which path of `jzero.attention` the blocks take; "auto" takes cuDNN's on GPUs where it can.
        scan_layers: stack the blocks' parameters into `[n_layer, ...]` leaves and run them under `jax.lax.scan`.
        remat: recompute each block in the backward pass instead of keeping its activations. True recomputes
            everything; a string names one of `jax.checkpoint_policies`.

    Raises:
        ConfigError: if a size is not positive, heads do not divide evenly, or the policy is unknown.

    Example:
        >>> LlamaConfig(vocab_size=32000, seq_len=4096, d_model=4096, n_layer=32, n_head=32).n_params
        6738415616
    """

    vocab_size: int
    seq_len: int
    d_model: int
    n_layer: int
    n_head: int
    n_kv_head: int | None = None
    d_ff: int | None = None
    rope_theta: float = 10000.0
    norm_epsilon: float = 1e-5
    tie_head: bool = False
    attention: Implementation = "auto"
    scan_layers: bool = False
    remat: bool | str = False

    def __post_init__(self):
        check_sizes(self, "vocab_size", "seq_len", "d_model", "n_layer", "n_head")
        check_multiple(self, "d_model", "n_head")
        if self.d_head % 2:
            raise ConfigError(
                f"model.d_model {self.d_model} over model.n_head {self.n_head} makes heads of width {self.d_head}; "
                "rotary positions need an even one."
            )
        if self.n_kv_head is not None:
            check_sizes(self, "n_kv_head")
            check_multiple(self, "n_head", "n_kv_head")
        if self.d_ff is not None:
            check_sizes(self, "d_ff")
        check_positive(self, "rope_theta", "norm_epsilon")
        check_flags(self, "tie_head")
        check_blocks(self)
        check_attention(self)

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return self.d_model // self.n_head

    @property
    def d_kv(self) -> int:
        """Width of all key heads, or of all value heads."""
        return self.d_head * (self.n_head if self.n_kv_head is None else self.n_kv_head)

    @property
    def d_hidden(self) -> int:
        """Width of the feed-forward layer."""
        return -(-8 * self.d_model // (3 * 256)) * 256 if self.d_ff is None else self.d_ff

    @property
    def n_params(self) -> int:
        """Number of parameters, a tied output layer counted once."""
        d = self.d_model
        block = 2 * d * d + 2 * d * self.d_kv + 3 * d * self.d_hidden + 2 * d
        return (1 if self.tie_head else 2) * self.vocab_size * d + self.n_layer * block + d

    @property
    def residual_std(self) -> float:
        """Standard deviation of the projections that write to the residual stream, as in the GPT."""
        return 0.02 / (2 * self.n_layer) ** 0.5
