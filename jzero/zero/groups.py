"""Two levels: between groups of devices parameters and gradients move once a step, inside a group as the stage has it.

The state is divided over all devices. At the start of a step each group gathers its own copy of the parameters, cast,
and divides it over its devices; every micro-batch gathers at use and scatters inside of the group; at the end the sums
of the groups are added and scattered. It is stage 1 between groups around stage 3 inside of them.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from jzero.base.types import Grads, Params, Placements
from jzero.gather import GradSums
from jzero.gather.unit.run import barrier
from jzero.sharding.collectives import GradReduceConfig, gather_over_groups, label, reduce_over_groups
from jzero.sharding.host_memory import is_on_host, to_device, to_host
from jzero.sharding.placement import SMALL_LEAF_ELEMENTS, Placement, path_name
from jzero.sharding.trees import is_placement
from jzero.zero.spec import StepSpec

TOGETHER_BYTES = 128 * 2**20
"""Gathers over the groups go in order of first use, so many bytes at a time: one network carries all of them, and what
is used last must not delay what is used first."""


OverGroups: TypeAlias = Callable[[int, jax.Array, Placement], jax.Array]
"""`(number of a parameter, its array or one layer of it, how that lies) -> the array after a collective`."""


class InGroup(NamedTuple):
    """Parameters as a group of devices has them.

    Attributes:
        params: what gradients are taken of. Of a parameter that was gathered over the groups it is a stand-in of the
            group's shard, which is never read, in the dtype that its gradient is added up from.
        ready: the group's shards as they compute; None for what is cast at each use.
        placements: how they lie inside of a group.
    """

    params: Params
    ready: Params
    placements: Placements


def in_group(spec: StepSpec, params_sharded: Params, ready: Params | None) -> InGroup:
    """Gathers parameters over the groups; for use inside `shard_map`, once a step.

    Args:
        spec: everything fixed.
        params_sharded: what gradients are taken of, this device's part.
        ready: such parts that are cast already, None for the others; or None if that is all of them.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(params_sharded)
    placements, casts = (treedef.flatten_up_to(tree) for tree in (spec.placements, spec.casts))
    made: list[jax.Array | None] = [None] * len(paths) if ready is None else treedef.flatten_up_to(ready)
    params, names = [x for _, x in paths], [path_name(path) for path, _ in paths]

    def gathered(i: int, shard: jax.Array, placement: Placement) -> jax.Array:
        shard = to_device(shard)
        for dtype in casts[i]:
            shard = shard.astype(dtype)
        with label("gather_across", names[i], "the step"):
            return gather_over_groups(shard, placement)

    shards = [x if ready is None else ready for x, ready in zip(params, made, strict=True)]
    for i, group_shard in _over_groups(spec.first_uses, shards, placements, gathered, chained=True).items():
        params[i], made[i] = _stand_in(params[i], placements[i].in_group), group_shard
    inside = jax.tree.map(lambda p: p.in_group, spec.placements, is_leaf=is_placement)
    return InGroup(treedef.unflatten(params), treedef.unflatten(made), inside)


def grad_sums(spec: StepSpec, params_sharded: Params) -> GradSums | None:
    """The stacks whose gradients a loop over layers adds to their sum, in the place of the stand-in that nobody reads.

    Only fp32 sums: in another dtype, and where micro-batches have weights, a gradient is not added as it is.
    """
    if not spec.two_level or spec.precision.accumulate != jnp.float32:
        return None
    shards, treedef = jax.tree.flatten(params_sharded)
    placements, trainable = (treedef.flatten_up_to(tree) for tree in (spec.placements, spec.trainable))
    every = enumerate(zip(shards, placements, trainable, strict=True))
    chosen = (i for i, (x, p, train) in every if train and p.stacked and p.n_groups > 1 and not is_on_host(x))
    return GradSums(frozenset(chosen))


def reduced_over_groups(grads: Grads, placements: Placements, grad_reduce: GradReduceConfig) -> Grads:
    """Adds up what the groups have summed, once a step; for use inside `shard_map`.

    Args:
        grads: sums over a group, this device's part of the group's; None where a parameter is frozen. Those of whole
            parameters stay as they are.
        placements: pytree of `Placement` like them.
        grad_reduce: how gradients travel.

    Returns:
        Sums over all devices; at two levels this device's part, else the same part on every group.
    """
    if grad_reduce.n_groups == 1:
        return grads
    paths, treedef = jax.tree_util.tree_flatten_with_path(grads)
    flat, reduced = treedef.flatten_up_to(placements), [grad for _, grad in paths]

    def one(i: int, grad: jax.Array, placement: Placement) -> jax.Array:
        with label("scatter_across", path_name(paths[i][0]), "the step"):
            return reduce_over_groups(to_device(grad), placement, grad_reduce)

    for i, total in _over_groups(range(len(paths)), reduced, flat, one, chained=False).items():
        reduced[i] = total
    return treedef.unflatten(reduced)


def _over_groups(
    order: Iterable[int],
    arrays: Sequence[jax.Array],
    placements: Sequence[Placement],
    one: OverGroups,
    *,
    chained: bool,
) -> dict[int, jax.Array]:
    """Sends arrays over the groups: what came of each that is divided, by its number, in the memory it was in.

    Chained, nothing starts before what comes first has arrived: one network carries all of them, and what is used first
    must not wait. What comes from the host always does so, or all of it could be on the device at once.
    """
    arrived: dict[int, jax.Array] = {}
    last: list[int] = []
    for some in _together(order, arrays, placements):
        sent, on_host = [arrays[i] for i in some], is_on_host(arrays[some[0]])
        if _by_layer(placements[some[0]], on_host=on_host):
            put = to_host if on_host else lambda x: x
            layers = [placements[i].layer for i in some]
            one_layer = lambda xs, some=some, layers=layers, put=put: [
                put(one(i, x, p)) for i, x, p in zip(some, xs, layers, strict=True)
            ]
            if chained and not on_host:  # a barrier cannot hold what a loop puts on the host
                sent, arrived = _after(sent, last, arrived)
            last = [] if on_host else some
            arrived |= zip(some, jax.lax.map(one_layer, sent), strict=True)
        else:
            if chained or on_host:
                sent, arrived = _after(sent, last, arrived)
            last = some
            arrived |= {i: one(i, x, placements[i]) for i, x in zip(some, sent, strict=True)}
    return {i: to_host(x) if is_on_host(arrays[i]) else x for i, x in arrived.items()}


def _after(
    sent: list[jax.Array], last: list[int], arrived: dict[int, jax.Array]
) -> tuple[list[jax.Array], dict[int, jax.Array]]:
    """Makes arrays wait for the last ones to arrive; both go through the barrier, and what comes out of it is used."""
    if not last:
        return sent, arrived
    before, sent = barrier(([arrived[i] for i in last], sent))
    return sent, arrived | dict(zip(last, before, strict=True))


def _together(order: Iterable[int], arrays: Sequence[jax.Array], placements: Sequence[Placement]) -> list[list[int]]:
    """The parameters that are divided, those that cross groups together in one list.

    Stacks of equally many layers go layer by layer: a gather along a later dimension would need a second copy of the
    whole stack to bring it into order, a scatter another one. What lies on the host comes one by one.
    """
    stacks: dict[int, list[int]] = {}
    lists: list[list[int]] = []
    n_bytes = 0
    for i in order:
        p = placements[i]
        if p.dim is None:
            continue
        if is_on_host(arrays[i]):
            lists.append([i])
            n_bytes = TOGETHER_BYTES  # what follows is a list of its own
        elif _by_layer(p, on_host=False):
            some = stacks.setdefault(p.shape[0], [])
            lists += [] if some else [some]
            some.append(i)
            n_bytes = TOGETHER_BYTES
        else:
            if n_bytes >= TOGETHER_BYTES or not lists:
                lists.append([])
                n_bytes = 0
            lists[-1].append(i)
            n_bytes += 2 * math.prod(p.in_group.shard_shape)
    return lists


def _by_layer(placement: Placement, *, on_host: bool) -> bool:
    """Whether a stack crosses layer by layer; a sum needs no order, and small things are soon copied."""
    is_large = math.prod(placement.shape[1:]) > SMALL_LEAF_ELEMENTS
    return placement.stacked and (on_host or (placement.n_groups > 1 and is_large))


def _stand_in(param: jax.Array, placement: Placement) -> jax.Array:
    """What the gradient of a group's shard is taken of; fp32, so that nothing is rounded before the groups add it."""
    wide = jnp.float32 if jnp.issubdtype(param.dtype, jnp.floating) else param.dtype
    zeros = jnp.zeros(placement.shard_shape, wide)
    return to_host(zeros) if is_on_host(param) else zeros
