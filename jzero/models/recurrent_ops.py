"""The recurrent layers' arithmetic as pure functions: one big product over all steps, then a loop over time.

Products are in the dtype of the parameters; gates and the state that is carried along are float32 at every dtype.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def lstm_cell(
    inputs: jax.Array, state: tuple[jax.Array, jax.Array], recurrent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """One step of an LSTM.

    Args:
        inputs: `[B, 4 d]`: what the inputs add to the gates `i`, `f`, `g`, `o`, bias included.
        state: float32 `(c, h)`, each `[B, d]`.
        recurrent: `[d, 4 d]`.

    Returns:
        The new state.
    """
    c, h = state
    gates = (inputs + h.astype(recurrent.dtype) @ recurrent).astype(jnp.float32)
    i, f, g, o = jnp.split(gates, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


def gru_cell(inputs: jax.Array, state: tuple[jax.Array], recurrent: jax.Array, bias: jax.Array) -> tuple[jax.Array]:
    """One step of a GRU whose reset gate acts on the recurrent product, as in cuDNN.

    Args:
        inputs: `[B, 3 d]`: what the inputs add to the gates `r`, `z` and the candidate `n`, bias included.
        state: float32 `(h,)`, `[B, d]`.
        recurrent: `[d, 3 d]`.
        bias: `[d]`, of the candidate's recurrent product.

    Returns:
        The new state.
    """
    (h,) = state
    from_inputs = jnp.split(inputs.astype(jnp.float32), 3, axis=-1)
    from_state = jnp.split((h.astype(recurrent.dtype) @ recurrent).astype(jnp.float32), 3, axis=-1)
    r, z = (jax.nn.sigmoid(a + b) for a, b in zip(from_inputs[:2], from_state[:2], strict=True))
    n = jnp.tanh(from_inputs[2] + r * (from_state[2] + bias.astype(jnp.float32)))
    return ((1.0 - z) * n + z * h,)


def over_time(cell: Callable, n_states: int, x: jax.Array, kernel: jax.Array, bias: jax.Array, *recurrent: jax.Array):
    """Runs a cell from a zero state over a sequence.

    Args:
        cell: `cell(inputs, state, *recurrent) -> state`, the output being the state's last array.
        n_states: arrays of the state.
        x: `[B, T, d_in]`.
        kernel: `[d_in, n_gates d]`, applied to all steps at once.
        bias: `[n_gates d]`.
        *recurrent: the cell's own parameters, the first of them `[d, n_gates d]`; the same at every step.

    Returns:
        The outputs `[B, T, d]`, in the dtype of `x`.
    """
    inputs = x @ kernel + bias  # [B, T, n_gates d]
    zeros = jnp.zeros((x.shape[0], recurrent[0].shape[0]), jnp.float32)

    def step(state, inputs):
        state = cell(inputs, state, *recurrent)
        return state, state[-1].astype(x.dtype)

    _, outputs = jax.lax.scan(step, (zeros,) * n_states, jnp.swapaxes(inputs, 0, 1))
    return jnp.swapaxes(outputs, 0, 1)
