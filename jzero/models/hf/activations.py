"""The activations of published models, by jzero's name and by that of a config.json."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""A function between two products; "gelu" is the exact one."""

NAMES: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
}
"""What `hidden_act`, `hidden_activation` and `activation_function` may say."""
