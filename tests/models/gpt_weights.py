"""Moves one set of weights between the GPT's forms: NNX or Linen, layers unrolled or stacked."""

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.models import GPT, GPTConfig


def split_nnx(config: GPTConfig, seed: int = 0):
    """A fresh NNX GPT as (graphdef, params, rest)."""
    return nnx.split(GPT(config, rngs=nnx.Rngs(seed)), nnx.Param, ...)


def stacked(params: dict, n_layer: int) -> dict:
    """Unrolled blocks -> stacked blocks, as NNX names them; leaves are plain arrays."""
    blocks = [params["h"][i] for i in range(n_layer)]
    return {**params, "h": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}


def as_linen(params: dict, config: GPTConfig) -> dict:
    """NNX names -> Linen names."""
    if config.scan_layers:
        return dict(params)
    named = {name: leaf for name, leaf in params.items() if name != "h"}
    return named | {f"h_{i}": params["h"][i] for i in range(config.n_layer)}
