"""Layers of one or two kinds, one after the other: one module each or stacked under `jax.lax.scan`."""

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

import jax
import jax.numpy as jnp
from flax import nnx

from jzero.models.blocks import Blocks
from jzero.models.checks import remat_policy

Call: TypeAlias = Callable[[nnx.Module, jax.Array, "bool | jax.Array"], jax.Array]
"""`call(layer, x, kind)` gives what leaves a layer."""


def layers_run(
    layers: Blocks,
    x: jax.Array,
    call: Call,
    *,
    scan_layers: bool,
    remat: bool | str,
    kinds: Sequence[bool] = (),
) -> jax.Array:
    """Runs layers as `jzero.models.blocks.run_blocks` does, where they are called with more than what enters them.

    Args:
        layers: from `make_blocks`.
        x: what enters the first.
        call: calls a layer; of arrays that it closes over none may be a parameter.
        scan_layers: whether they are stacked.
        remat: see `run_blocks`.
        kinds: one for each layer, where there are two kinds. In a loop over both of them a kind is traced; else it is
            a bool.

    Returns:
        What leaves the last.

    Example:
        >>> from jzero.models.blocks import make_blocks
        >>> layers = make_blocks(lambda rngs: nnx.Linear(4, 4, rngs=rngs), 3, scan_layers=True, rngs=nnx.Rngs(0))
        >>> layers_run(layers, jnp.ones((2, 4)), lambda f, x, kind: f(x), scan_layers=True, remat=True).shape
        (2, 4)
    """
    policy = remat_policy(remat)
    if scan_layers:
        graphdef, params, rest = nnx.split(layers, nnx.Param, ...)
        every = bool(kinds) and kinds[0]

        def run(
            params: nnx.State, rest: nnx.State, kind: jax.Array | None, x: jax.Array
        ) -> tuple[jax.Array, nnx.State]:
            return _run(graphdef, call, every if kind is None else kind, params, rest, x)

        run = jax.checkpoint(run, policy=policy, prevent_cse=False) if remat else run
        per_layer = (params, rest, jnp.asarray(kinds) if len(set(kinds)) > 1 else None)
        x, rest = jax.lax.scan(lambda x, layer: run(*layer, x), x, per_layer)
        nnx.update(layers, rest)
        return x
    for i, layer in enumerate(cast(nnx.List, layers)):
        kind = bool(kinds) and kinds[i]
        if not remat:
            x = call(layer, x, kind)
            continue
        graphdef, params, rest = nnx.split(layer, nnx.Param, ...)
        again = jax.checkpoint(functools.partial(_run, graphdef, call, kind), policy=policy)
        x, rest = again(params, rest, x)
        nnx.update(layer, rest)
    return x


def _run(
    graphdef: nnx.GraphDef, call: Call, kind: bool | jax.Array, params: nnx.State, rest: nnx.State, x: jax.Array
) -> tuple[jax.Array, nnx.State]:
    """Rebuilds a layer from its parts and runs it; returns the output and the layer's changed non-parameters."""
    layer = nnx.merge(graphdef, params, rest)
    x = call(layer, x, kind)
    return x, nnx.state(layer, nnx.Not(nnx.Param))
