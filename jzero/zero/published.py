"""Weights of a published checkpoint, each shard read into its place."""

import jax
import numpy as np

from jzero.base.types import Params
from jzero.checkpoint.convert.hf_weights import Index, LeafSource, open_sources
from jzero.checkpoint.format.leaves import in_default_memory
from jzero.models.hf.load import HFWeights
from jzero.sharding.placement import Placement, path_name
from jzero.sharding.trees import is_placement
from jzero.zero.build import Functional


def read_published(fns: Functional, weights: HFWeights) -> Params:
    """Reads parameters as they last between steps: in their dtype, their stored shapes and their places.

    Args:
        fns: the run; its model must be that of the checkpoint.
        weights: from `jzero.models.from_hf`.

    Returns:
        Global arrays, of which every process has read its own shards, one leaf after the other.

    Raises:
        CheckpointError: the files cannot be read, or are of another model.
    """
    leaves = jax.tree_util.tree_leaves_with_path(fns.placements.params, is_leaf=is_placement)
    sources = open_sources(weights, {path_name(path): place.shape for path, place in leaves})
    stored, treedef = jax.tree.flatten(fns.whole.params)
    return treedef.unflatten(
        [_placed(sources[path_name(path)], place, x) for (path, place), x in zip(leaves, stored, strict=True)]
    )


def _placed(source: LeafSource, place: Placement, stored: jax.ShapeDtypeStruct) -> jax.Array:
    assert stored.sharding is not None
    sharding = in_default_memory(stored.sharding)
    parts: list[jax.Array] = []
    read_index, part = None, np.zeros(())
    for device, index in sharding.addressable_devices_indices_map(stored.shape).items():
        assert index is not None
        if index != read_index:  # of a leaf that is whole everywhere all devices get the same
            read_index, part = index, _read(source, index, place, stored)
        parts.append(jax.device_put(part, device).block_until_ready())  # its buffer goes before the next one is read
    return jax.make_array_from_single_device_arrays(stored.shape, sharding, parts)


def _read(source: LeafSource, index: Index, place: Placement, stored: jax.ShapeDtypeStruct) -> np.ndarray:
    """A part of a leaf, with the zeros that it is stored with."""
    bounds = [s.indices(n)[:2] for s, n in zip(index, stored.shape, strict=True)]
    within = tuple(slice(min(a, n), min(b, n)) for (a, b), n in zip(bounds, place.shape, strict=True))
    part = source.read(within, stored.dtype)
    missing = [(0, b - a - n) for (a, b), n in zip(bounds, part.shape, strict=True)]
    return np.pad(part, missing) if any(n for _, n in missing) else part
