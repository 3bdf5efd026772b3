"""The activations of published models as functions."""

from collections.abc import Callable, Mapping

import jax

from jzero.models import ops
from jzero.models.hf.activations import Activation
from jzero.ops.recompute import keeping_inputs

ACTIVATIONS: Mapping[Activation, Callable[[jax.Array], jax.Array]] = {
    "silu": keeping_inputs(jax.nn.silu),
    "gelu": keeping_inputs(lambda x: jax.nn.gelu(x, approximate=False)),
    "gelu_tanh": ops.gelu,
    "relu": jax.nn.relu,
}

GATES: Mapping[Activation, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "silu": ops.swiglu,
    "gelu": keeping_inputs(lambda gate, up: jax.nn.gelu(gate, approximate=False) * up),
    "gelu_tanh": keeping_inputs(lambda gate, up: jax.nn.gelu(gate, approximate=True) * up),
    "relu": keeping_inputs(lambda gate, up: jax.nn.relu(gate) * up),
}
"""The same of the gate of a gated layer, which multiplies what comes up beside it."""
