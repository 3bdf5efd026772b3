"""Which lasting arrays live in host memory: the meaning of `offload_optimizer` and `offload_param`, leaf by leaf.

The fp32 master copy of a trainable parameter belongs to the optimizer and goes where its moments go; that is the whole
lasting state of a parameter, for the copy that computes is made from it in every step. A frozen parameter has no
optimizer and goes with `offload_param`.
"""

import math
from dataclasses import dataclass

import jax

from jzero.base.types import Mask, Placements
from jzero.config import ResolvedConfig
from jzero.sharding.placement import SMALL_LEAF_ELEMENTS
from jzero.sharding.trees import is_placement


@dataclass(frozen=True)
class OffloadPlan:
    """Where the state lives.

    Attributes:
        on_host: pytree of bool like the parameters: whether a parameter, with its moments, lives in host memory.
        at_use: parameters on the host are fetched where they are used and their gradients go back there; otherwise
            they are fetched once, at the start of the step, and gradients stay on the device.
        piece_elements: elements of a parameter that the update has on the device at once.
        in_files: the master copy and the moments are in files instead, and the parameters that compute where `at_use`
            says: on the host or on the devices.
    """

    on_host: Mask
    at_use: bool
    piece_elements: int
    in_files: bool = False

    @property
    def is_used(self) -> bool:
        """Whether anything is on the host."""
        return any(jax.tree.leaves(self.on_host))


def plan_offload(
    config: ResolvedConfig, placements: Placements, trainable: Mask, piece_elements: int, *, persists_small_leaves: bool
) -> OffloadPlan:
    """Decides where each parameter lives.

    Args:
        config: reads `zero_optimization.offload_optimizer`, `offload_param` and `sub_group_size`.
        placements: pytree of `Placement` like the parameters.
        trainable: pytree of bool like the parameters.
        piece_elements: the most elements that are on the device at once, whatever `sub_group_size` allows.
        persists_small_leaves: whether leaves up to `stage3_param_persistence_threshold` stay whole, as at stage 3.

    Returns:
        The plan; at stage 0 nothing is offloaded, as in DeepSpeed. Small leaves stay on the device: copying them costs
        more than they take.
    """
    zero = config.zero_optimization
    threshold = max(SMALL_LEAF_ELEMENTS, zero.stage3_param_persistence_threshold if persists_small_leaves else 0)
    share = zero.offload_optimizer.ratio if zero.offloads_optimizer and zero.offload_optimizer else 0.0
    sizes = jax.tree.map(lambda p: math.prod(p.shape), placements, is_leaf=is_placement)
    moved = _largest(jax.tree.leaves(jax.tree.map(lambda n, t: n if t else 0, sizes, trainable)), share)
    leaves, treedef = jax.tree.flatten(trainable)
    frozen_too = zero.offloads_params
    lie = jax.tree.leaves(placements, is_leaf=is_placement)
    on_host = [
        math.prod(p.shape) > threshold
        and (p.dim is not None or not (frozen_too or zero.swaps_optimizer))
        and (i in moved if train else frozen_too)
        for i, (p, train) in enumerate(zip(lie, leaves, strict=True))
    ]
    pieces = min(piece_elements, zero.sub_group_size or piece_elements)
    in_files = zero.swaps_optimizer and any(here and train for here, train in zip(on_host, leaves, strict=True))
    return OffloadPlan(treedef.unflatten(on_host), frozen_too, pieces, in_files)


def _largest(sizes: list[int], share: float) -> set[int]:
    """The fewest indices, largest sizes first, that hold at least a share of the whole."""
    chosen, total = set(), 0
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if total >= share * sum(sizes):
            break
        chosen.add(i)
        total += sizes[i]
    return chosen
