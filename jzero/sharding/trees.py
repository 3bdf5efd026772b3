"""Pytrees of placements and what is done with them: split, pad, place an optimizer's state, name shardings.

Arrays are stored in their padded shape (see `jzero.sharding.placement`); the optimizer and the user see true shapes.
"""

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath

from jzero.base.types import Mask, OptState, Params, Placements, PyTree
from jzero.sharding import host_memory as memory
from jzero.sharding.placement import Placement


def is_placement(x: object) -> bool:
    """For `jax.tree` functions: whether a node is a `Placement`, the leaf of a tree of placements."""
    return isinstance(x, Placement)


def split(params: Params, trainable: Mask) -> tuple[Params, Params]:
    """Splits a parameter tree into its trainable and its frozen part; None stands where a leaf belongs to the other."""
    chosen = jax.tree.map(lambda t, x: x if t else None, trainable, params)
    return chosen, jax.tree.map(lambda t, x: None if t else x, trainable, params)


def join(chosen: Params, rest: Params) -> Params:
    """Undoes `split`."""
    return jax.tree.map(lambda a, b: b if a is None else a, chosen, rest, is_leaf=lambda x: x is None)


def pad(tree: PyTree, placements: Placements) -> PyTree:
    """True shapes -> padded shapes, leaf by leaf."""
    return jax.tree.map(lambda p, x: p.pad(x), placements, tree, is_leaf=is_placement)


def unpad(tree: PyTree, placements: Placements) -> PyTree:
    """Padded shapes -> true shapes, leaf by leaf."""
    return jax.tree.map(lambda p, x: p.unpad(x), placements, tree, is_leaf=is_placement)


def owners(state: OptState, params: Params) -> PyTree:
    """Finds the parameter that each leaf of an optimizer state mirrors.

    Args:
        state: abstract optimizer state, true shapes.
        params: abstract trainable parameters, true shapes.

    Returns:
        A pytree like `state` of indices in the flattening order of `params`, -1 for what mirrors none. A leaf mirrors a
        parameter if its path ends with the parameter's path and the shapes agree, which holds for the moments of every
        optax transformation that maps over the parameters.
    """
    by_name = {
        tuple(map(str, path)): (i, leaf.shape)
        for i, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(params))
    }

    def owner(path: KeyPath, leaf: jax.ShapeDtypeStruct) -> int:
        name = tuple(map(str, path))
        tails = (by_name.get(name[i:], (-1, None)) for i in range(len(name) + 1))
        return next((i for i, shape in tails if shape == leaf.shape), -1)

    return jax.tree_util.tree_map_with_path(owner, state)


def place_like_params(state: OptState, params: Params, placements: Placements) -> Placements:
    """Places an optimizer state: what mirrors a parameter lies like it, the rest is replicated.

    Args:
        state: abstract optimizer state, true shapes.
        params: abstract trainable parameters, true shapes.
        placements: their placements.

    Returns:
        A pytree of placements like `state`.
    """
    flat = jax.tree.leaves(placements, is_leaf=is_placement)
    place = lambda owner, leaf: flat[owner] if owner >= 0 else Placement(tuple(leaf.shape))
    return jax.tree.map(place, owners(state, params), state)


def shardings(placements: Placements, mesh: Mesh, on_host: Mask | None = None) -> PyTree:
    """Turns a pytree of placements into one of `NamedSharding`s.

    Args:
        placements: pytree of `Placement`.
        mesh: the devices.
        on_host: pytree of bool like `placements`: what lives in host memory; nothing by default.
    """
    if on_host is None:
        on_host = jax.tree.map(lambda _: False, placements, is_leaf=is_placement)
    return jax.tree.map(
        lambda p, host: memory.sharding(mesh, p.spec, on_host=host), placements, on_host, is_leaf=is_placement
    )


def stored(placements: Placements, dtypes: PyTree, mesh: Mesh, on_host: Mask | None = None) -> PyTree:
    """The abstract arrays of a state as it is stored: padded shapes, with shardings; see `shardings`."""
    return jax.tree.map(
        lambda p, s, x: jax.ShapeDtypeStruct(p.padded_shape, x.dtype, sharding=s),
        placements,
        shardings(placements, mesh, on_host),
        dtypes,
        is_leaf=is_placement,
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of small things that every device holds."""
    return NamedSharding(mesh, PartitionSpec())
