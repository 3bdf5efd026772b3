"""Rematerialisation policies by name: what a recomputed block keeps for the backward pass, and where."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.core import ShapedArray
from jax.extend.core import Primitive

from jzero.base.remat_policies import JAX_POLICIES
from jzero.jaxpr.primitives import ALL_GATHER

T = TypeVar("T")

_BLOCK_INPUT = "jzero block input"

OFFLOAD: Callable = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=[_BLOCK_INPUT],
    offload_src="device",
    offload_dst="pinned_host",
)
"""Keeps nothing but a block's inputs, and those in host memory; `named_inputs` says which values they are."""

POLICIES: dict[str, Callable | None] = {
    **{name: getattr(jax.checkpoint_policies, name) for name in JAX_POLICIES},
    "offload": OFFLOAD,
}
"""What each of `jzero.base.remat_policies.REMAT_POLICIES` is."""


def named_inputs(values: Sequence[T]) -> list[T]:
    """Marks the floating arrays among some values as inputs of a block, for `OFFLOAD`; call it inside the block."""

    def is_input(x: object) -> bool:
        return isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)

    return [checkpoint_name(x, _BLOCK_INPUT) if is_input(x) else x for x in values]


def never_gathered(policy: Callable | None) -> Callable | None:
    """The same policy, except that it never keeps what is gathered."""
    if policy is None:
        return None

    def saves(primitive: Primitive, *avals: ShapedArray, **params: object) -> object:
        return False if primitive.name == ALL_GATHER else policy(primitive, *avals, **params)

    return saves
