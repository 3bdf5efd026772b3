"""How a training state is divided between devices and files, as a function of its leaves' numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jzero.base.types import Casts, Mask, PyTree
from jzero.offload.host.update import Plan
from jzero.sharding.placement import Placement
from jzero.sharding.trees import split


@dataclass(frozen=True)
class StatePartition:
    """What is in files.

    Attributes:
        names: of the parameters in files, dotted.
        placements: how they lie over the mesh.
        casts: for each, the dtypes through which it goes to the one that computes.
        arrays: for each, the numbers of its moments, and last its own, among the leaves of the whole state.
        treedef: of the whole state.
    """

    names: tuple[str, ...]
    placements: tuple[Placement, ...]
    casts: tuple[tuple[np.dtype, ...], ...]
    arrays: tuple[tuple[int, ...], ...]
    treedef: Any

    def on_devices(self, state: PyTree) -> PyTree:
        """What lasts outside of files of a whole state, None in the place of moments in files."""
        leaves = jax.tree.leaves(state)
        for (*moments, param), casts in zip(self.arrays, self.casts, strict=True):
            for i in moments:
                leaves[i] = None
            for dtype in casts:
                leaves[param] = leaves[param].astype(dtype)
        return self.treedef.unflatten(leaves)

    def abstract(self, state: PyTree) -> PyTree:
        """The same of an abstract state, with the shardings of what is not in files."""
        place = lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at.sharding)
        moments = {i: None for ids in self.arrays for i in ids[:-1]}
        return jax.tree.map(place, jax.eval_shape(self.on_devices, state), self.fill(state, moments))

    def bytes_in_files(self, whole: PyTree) -> int:
        """What one device has in files, of an abstract state."""
        arrays = [jax.tree.leaves(whole)[i] for ids in self.arrays for i in ids]
        return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in arrays)

    def without(self, state: PyTree) -> PyTree:
        """What neither is in files nor made from them."""
        return self.fill(state, {i: None for arrays in self.arrays for i in arrays})

    def fill(self, state: PyTree, values: Mapping[int, PyTree]) -> PyTree:
        """A state with other values for some of its leaves, present or not."""
        leaves = self.treedef.flatten_up_to(state)
        return self.treedef.unflatten([values.get(i, x) for i, x in enumerate(leaves)])


def partition_state(plan: Plan, whole: PyTree, trainable: Mask, casts: Casts) -> StatePartition:
    """Divides a state as an update's plan has it.

    Args:
        plan: the update, taken apart; its `leaves` are the parameters in files.
        whole: the abstract state.
        trainable: pytree of bool like the parameters.
        casts: pytree of tuples of dtypes like the parameters.
    """
    treedef, numbers = jax.tree.structure(whole), iter(range(len(jax.tree.leaves(whole))))
    numbered = jax.tree.map(lambda _: next(numbers), whole)
    params = jax.tree.leaves(split(numbered.params, trainable)[0])
    cast = jax.tree.structure(numbered.params).flatten_up_to(casts)  # parameters come first in a state
    state = [*jax.tree.leaves(numbered.opt_state), *params]
    return StatePartition(
        tuple(leaf.name for leaf in plan.leaves),
        tuple(leaf.placement for leaf in plan.leaves),
        tuple(tuple(cast[params[leaf.inputs[0]]]) for leaf in plan.leaves),
        tuple(tuple(state[i - plan.n_params] for i in leaf.inputs[1:]) for leaf in plan.leaves),
        treedef,
    )
