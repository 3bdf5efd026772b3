"""Blocks of one kind, one after the other: one module each or stacked under `jax.lax.scan`, with or without remat.

`nnx.scan` and `nnx.remat` return every variable they were given, parameters included, which would keep gathered weights
alive. Only what a block can change, such as its random streams, comes back from the transforms below.
"""

import functools
from collections.abc import Callable
from typing import TypeAlias, cast

import jax
from flax import nnx

from jzero.base.types import PyTree
from jzero.models.checks import remat_policy

Blocks: TypeAlias = nnx.List | nnx.Module
"""A list of modules, or one module whose leaves are stacked."""

Beside: TypeAlias = tuple[PyTree, ...]


def make_blocks(make: Callable[[nnx.Rngs], nnx.Module], n_layer: int, *, scan_layers: bool, rngs: nnx.Rngs) -> Blocks:
    """Makes blocks for `run_blocks`.

    Args:
        make: makes one block.
        n_layer: how many.
        scan_layers: whether they are stacked into one module, every leaf `[n_layer, ...]`, or a list of modules.
        rngs: the streams of the whole model; stacked blocks each get a stream of their own.
    """
    if not scan_layers:
        return nnx.List([make(rngs) for _ in range(n_layer)])
    return nnx.split_rngs(splits=n_layer)(nnx.vmap(make, in_axes=0, out_axes=0))(rngs)


def run_blocks(blocks: Blocks, x: jax.Array, *beside: PyTree, scan_layers: bool, remat: bool | str) -> jax.Array:
    """Runs blocks in order.

    Args:
        blocks: from `make_blocks`, each called with and returning arrays like `x`.
        x: what enters the first block.
        *beside: what every block is called with besides, such as the documents of packed rows.
        scan_layers: whether they are stacked.
        remat: recompute each block in the backward pass instead of keeping its activations. True recomputes
            everything; a string names one of `jax.checkpoint_policies`.

    Returns:
        What leaves the last block.

    Example:
        >>> blocks = make_blocks(lambda rngs: nnx.Linear(4, 4, rngs=rngs), 3, scan_layers=True, rngs=nnx.Rngs(0))
        >>> blocks.kernel.shape, run_blocks(blocks, jax.numpy.ones((2, 4)), scan_layers=True, remat=True).shape
        ((3, 4, 4), (2, 4))
    """
    if scan_layers:
        return _scan(blocks, x, beside, remat)
    for block in cast(nnx.List, blocks):
        x = _checkpointed(block, x, beside, remat) if remat else block(x, *beside)
    return x


def _scan(blocks: Blocks, x: jax.Array, beside: Beside, remat: bool | str) -> jax.Array:
    graphdef, params, rest = nnx.split(blocks, nnx.Param, ...)
    run = functools.partial(_run_block, graphdef)
    if remat:
        run = jax.checkpoint(run, policy=remat_policy(remat), prevent_cse=False)
    x, rest = jax.lax.scan(lambda x, layer: run(layer[0], layer[1], x, beside), x, (params, rest))
    nnx.update(blocks, rest)
    return x


def _checkpointed(block: nnx.Module, x: jax.Array, beside: Beside, remat: bool | str) -> jax.Array:
    graphdef, params, rest = nnx.split(block, nnx.Param, ...)
    run = jax.checkpoint(functools.partial(_run_block, graphdef), policy=remat_policy(remat))
    x, rest = run(params, rest, x, beside)
    nnx.update(block, rest)
    return x


def _run_block(
    graphdef: nnx.GraphDef, params: nnx.State, rest: nnx.State, x: jax.Array, beside: Beside
) -> tuple[jax.Array, nnx.State]:
    """Rebuilds a block from its parts and runs it; returns the output and the block's changed non-parameters."""
    block = nnx.merge(graphdef, params, rest)
    x = block(x, *beside)
    return x, nnx.state(block, nnx.Not(nnx.Param))
