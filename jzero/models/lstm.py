"""A recurrent language model in Flax NNX: embedding, layers of LSTM or GRU over time, output layer.

It computes in the dtype of the parameters it holds when called. A layer's recurrent weights are constants of its loop
over time, so ZeRO stage 3 gathers them once per pass and not once per token.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.models import ops, recurrent_ops
from jzero.models.checks import check_choice, check_dropout, check_sizes
from jzero.models.layers import Head

N_GATES = {"lstm": 4, "gru": 3}


@dataclasses.dataclass(frozen=True)
class LSTMConfig:
    """The sizes of a recurrent language model.

    Args:
        vocab_size: number of token ids.
        d_model: width of the embedding and of every layer.
        n_layer: number of layers.
        cell: `lstm` or `gru`.
        dropout: rate after the embedding and after each layer; 0 needs no random stream.

    Raises:
        ConfigError: if a size is not positive or the cell is unknown.

    Example:
        >>> LSTMConfig(vocab_size=10000, d_model=650, n_layer=2).n_params
        19765200
    """

    vocab_size: int
    d_model: int
    n_layer: int
    cell: str = "lstm"
    dropout: float = 0.0

    def __post_init__(self):
        check_sizes(self, "vocab_size", "d_model", "n_layer")
        check_choice(self, "cell", list(N_GATES))
        check_dropout(self)

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        d, n_gates = self.d_model, N_GATES[self.cell]
        layer = n_gates * (2 * d * d + d) + (d if self.cell == "gru" else 0)
        return 2 * self.vocab_size * d + self.n_layer * layer


class LSTMLayer(nnx.Module):
    """One LSTM layer; the forget gate's bias starts at one."""

    def __init__(self, d: int, *, rngs: nnx.Rngs):
        self.kernel = _kernel(d, 4, nnx.initializers.lecun_normal(), rngs)
        self.recurrent = _kernel(d, 4, nnx.initializers.orthogonal(), rngs)
        self.bias = nnx.Param(jnp.zeros(4 * d, jnp.float32).at[d : 2 * d].set(1.0))

    def __call__(self, x: jax.Array) -> jax.Array:
        return recurrent_ops.over_time(
            recurrent_ops.lstm_cell, 2, x, self.kernel[...], self.bias[...], self.recurrent[...]
        )


class GRULayer(nnx.Module):
    """One GRU layer."""

    def __init__(self, d: int, *, rngs: nnx.Rngs):
        self.kernel = _kernel(d, 3, nnx.initializers.lecun_normal(), rngs)
        self.recurrent = _kernel(d, 3, nnx.initializers.orthogonal(), rngs)
        self.bias = nnx.Param(jnp.zeros(3 * d, jnp.float32))
        self.recurrent_bias = nnx.Param(jnp.zeros(d, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        recurrent = self.recurrent[...], self.recurrent_bias[...]
        return recurrent_ops.over_time(recurrent_ops.gru_cell, 1, x, self.kernel[...], self.bias[...], *recurrent)


def _kernel(d: int, n_gates: int, init: nnx.Initializer, rngs: nnx.Rngs) -> nnx.Param:
    """The kernels of all gates side by side, each drawn by itself."""
    return nnx.Param(jnp.concatenate([init(rngs.params(), (d, d), jnp.float32) for _ in range(n_gates)], axis=1))


class LSTM(nnx.Module):
    """The whole language model.

    Args:
        config: sizes.
        rngs: streams `params` and, with dropout, `dropout`.

    Example:
        >>> LSTM(LSTMConfig(vocab_size=256, d_model=32, n_layer=2), rngs=nnx.Rngs(0))(jnp.zeros((4, 16), int)).shape
        (4, 16, 256)
    """

    def __init__(self, config: LSTMConfig, *, rngs: nnx.Rngs):
        self.config = config
        d, layer = config.d_model, {"lstm": LSTMLayer, "gru": GRULayer}[config.cell]
        self.wte = nnx.Param(nnx.initializers.normal(1.0)(rngs.params(), (config.vocab_size, d), jnp.float32))
        self.layers = nnx.List([layer(d, rngs=rngs) for _ in range(config.n_layer)])
        self.head = Head(d, config.vocab_size, d**-0.5, use_bias=False, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs if config.dropout else None)

    def __call__(self, tokens: jax.Array, output: ops.Output = ops.logits) -> jax.Array:
        """Scores the next token at every position.

        Args:
            tokens: `int32[B, T]`; each row starts from a zero state.
            output: what to return of hidden states `[B, T, d]`, the output layer's weights and their layout.

        Returns:
            What `output` returns: by default float32 logits `[B, T, vocab_size]`.
        """
        x = self.dropout(self.wte[...][tokens])  # [B, T, d]
        for layer in self.layers:
            x = self.dropout(layer(x))
        return output(x, self.head.kernel[...], "dv")

    def with_output(self, tokens: jax.Array, output: ops.Output) -> jax.Array:
        """Calls the model with something else in the place of logits, such as a loss that never holds all of them."""
        return self(tokens, output)
