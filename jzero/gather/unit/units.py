"""One use of parameters: gather, compute, drop; in the backward pass gather again, compute the cotangents, scatter.

A unit also starts gathers for units that come later in either pass, tied by a barrier to its own input so that they
start no earlier, and hands on what it has gathered. Forward, gathered parameters travel between units as ordinary
values. Backward they travel in the place of cotangents: a unit that wants a parameter gathered by a later unit of the
forward pass, which is an earlier one of the backward pass, gives it a value of that parameter's shape, never read, and
finds the parameter in the cotangent that comes back.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from jzero.gather.unit.deferred import DeferredParam, ParamShards
from jzero.gather.unit.split_vjp import SplitVJP, is_inexact
from jzero.sharding.collectives import GradReduceConfig
from jzero.sharding.host_memory import to_device, to_host


@dataclass(frozen=True)
class Unit:
    """A use of parameters.

    Attributes:
        name: of the primitive.
        gather_keys: what it gathers, in the order of first use.
        passed: leaves whose own arrays go in, to be sliced by a loop inside or because they are whole.
        split_vjp: its computation; the other operands are the passed arrays and then the data.
        offloads: whether the data through which gradients flow waits for the backward pass in host memory.
    """

    name: str
    gather_keys: tuple[DeferredParam, ...]
    passed: tuple[int, ...]
    split_vjp: SplitVJP
    offloads: bool = False

    def to_gather(self, *, backward: bool) -> tuple[DeferredParam, ...]:
        """What to gather in one pass: forms not gathered in advance, and in the backward pass only those it reads."""
        needs = zip(self.gather_keys, self.split_vjp.needs, strict=True)
        return tuple(f for f, needed in needs if not f.in_advance and (needed or not backward))


@dataclass(frozen=True)
class Orders:
    """What one unit gathers in one pass, and for whom.

    Attributes:
        gather: what it gathers: for itself or for later units.
        send: what it hands on, each with the number of the unit that gets it.
        receive: its own forms that were gathered before, each with the number of the unit that hands it on.
    """

    gather: tuple[DeferredParam, ...] = ()
    send: tuple[tuple[DeferredParam, int], ...] = ()
    receive: tuple[tuple[DeferredParam, int], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """The orders of one unit in both passes.

    Attributes:
        ahead: in the forward pass.
        back: in the backward pass.
        kept: forms that stay gathered between the two.
        scatters_first: whether its gradients are scattered before the backward pass goes on, since a loop comes next.
    """

    ahead: Orders
    back: Orders
    kept: frozenset[DeferredParam] = field(default=frozenset())
    scatters_first: bool = False


def on_its_own(unit: Unit) -> Schedule:
    """A unit that gathers for itself, without looking ahead."""
    return Schedule(Orders(gather=unit.to_gather(backward=False)), Orders(gather=unit.to_gather(backward=True)))


Link = tuple[DeferredParam, int, int]
"""A gathered parameter on its way: what, from which unit, to which."""


def run_unit(
    unit: Unit,
    number: int,
    schedule: Schedule,
    uses: Mapping[DeferredParam, str],
    data: Sequence[Any],
    arrays: Mapping[int, ParamShards],
    links: dict[Link, jax.Array],
    grad_reduce: GradReduceConfig,
    *,
    tied: bool,
) -> list[jax.Array]:
    """Runs a unit.

    Args:
        unit: the unit.
        number: its place among the units.
        schedule: what to gather when.
        uses: the primitive that needs each form it gathers, its own or a later one.
        data: its operands that are no parameters.
        arrays: the arrays of every parameter.
        links: what units before it have handed on; what it hands on is added.
        grad_reduce: how gradients travel.
        tied: whether gathers wait for the unit's input. Inside a loop nothing could start them earlier than its
            iteration anyway.

    Returns:
        The results of its equation.
    """
    ahead, back, split_vjp = schedule.ahead, schedule.back, unit.split_vjp
    own = sorted({f.leaf for f in unit.gather_keys})
    hosted = {f.leaf for f in unit.gather_keys if f.on_host}
    prefetched = sorted({f.leaf for f in (*ahead.gather, *back.gather)} - set(own))
    # The cotangent in which a parameter comes back must have been given a place by the unit that will want it.
    # Its link runs from the later unit to the earlier one, so that no forward link between the two is the same.
    wanted_back = [(f, producer, number) for f, producer in back.receive]
    given_back = [(f, number, receiver) for f, receiver in back.send]
    passed_tree = jax.tree.structure({leaf: arrays[leaf] for leaf in unit.passed})
    n_passed = passed_tree.num_leaves
    on_host = [i for i in split_vjp.moving_others if i >= n_passed] if unit.offloads else []

    def forward(own_shards, prefetched_shards, passed, data, received, _placeholders):
        parts = dict(zip([*own, *prefetched], [*own_shards, *prefetched_shards], strict=True))
        others = [*jax.tree.leaves(passed), *data]
        # What has arrived is tied too: gathers for later units then cannot overtake or be merged with it.
        (others, received), gathering = _tie((others, received), [parts[f.leaf] for f in ahead.gather], tied)
        gathered = {f: f.gathered(p, uses[f]) for f, p in zip(ahead.gather, gathering, strict=True)}
        gathered |= {f: f.gathered(parts[f.leaf]) for f in unit.gather_keys if f.in_advance}
        gathered |= dict(zip([f for f, _ in ahead.receive], received, strict=True))
        outs, kept = split_vjp.forward([gathered[f] for f in unit.gather_keys], others)
        if on_host:
            # Or the compiler would put the copy off until the backward pass and hold the value on the device meanwhile.
            # A loop copies in every iteration anyway, and XLA has no barrier for what it stacks in host memory.
            away = [to_host(kept[i]) for i in on_host]
            outs, away = barrier((outs, away)) if tied else (outs, away)
            kept = _replaced(kept, on_host, away)
        sent = [gathered[f] for f, _ in ahead.send]
        placeholders = [jnp.zeros(f.shape.shape, f.shape.dtype) for f, *_ in wanted_back]
        return (outs, sent, placeholders), (
            own_shards,
            prefetched_shards,
            kept,
            [gathered[f] for f in _kept(unit, schedule)],
        )

    @jax.custom_vjp
    def call(*operands):
        return forward(*operands)[0]

    def call_forward(*operands):
        is_primal = lambda x: hasattr(x, "perturbed")
        flags = [x.perturbed and is_inexact(x.value) for x in operands[3]]
        unforeseen = {n_passed + i for i, p in enumerate(flags) if p} - {*split_vjp.moving_others}
        assert not unforeseen, f"operands {unforeseen} of {unit.name} carry a gradient, but only parameters should"
        return forward(*jax.tree.map(lambda x: x.value, operands, is_leaf=is_primal))

    def backward(residuals, cotangents):
        own_shards, prefetched_shards, kept, kept_full = residuals
        grads_out, _, came_back = cotangents
        parts = dict(zip([*own, *prefetched], [*own_shards, *prefetched_shards], strict=True))
        gathered = {f: f.gathered(parts[f.leaf]) for f in unit.gather_keys if f.in_advance}
        gathered |= dict(zip(_kept(unit, schedule), kept_full, strict=True))
        gathered |= {f: x for (f, *_), x in zip(wanted_back, came_back, strict=True) if not is_zero(x)}
        needed = [f for f, n in zip(unit.gather_keys, split_vjp.needs, strict=True) if n] + [f for f, _ in back.send]
        gather = list(dict.fromkeys([*back.gather, *(f for f in needed if f not in gathered)]))
        has_gradient = not all(is_zero(g) for g in grads_out)
        grads_out = [instantiated(g, s) for g, s in zip(grads_out, split_vjp.out_shapes, strict=True) if is_inexact(s)]

        waiting = [parts[f.leaf] for f in gather]
        if tied and (waiting or split_vjp.recomputes):
            # Or the compiler would find what is gathered and computed here equal to the forward pass, and keep that.
            here = list(gathered.values())
            kept, grads_out, here, waiting = barrier((kept, grads_out, here, waiting))
            gathered = dict(zip(gathered, here, strict=True))
        gathered |= {f: f.gathered(p, uses[f]) for f, p in zip(gather, waiting, strict=True)}
        kept = _replaced(kept, on_host, [to_device(kept[i]) for i in on_host])

        grads_full: list[Any] = [None] * len(unit.gather_keys)
        grads_others: list[Any] = [None] * (n_passed + len(data))
        if has_gradient:
            full = [gathered.get(f) for f in unit.gather_keys]
            moved, moved_others = split_vjp.backward(full, kept, grads_out)
            if tied and split_vjp.recomputes:
                # The gradient of a bias is wanted at the end of the step only. The scheduler would compute it there and
                # keep what it is the sum of; so nothing leaves before it is there.
                moved_others = barrier(moved_others)
            for i, grad in zip(split_vjp.moving_full, moved, strict=True):
                grads_full[i] = unit.gather_keys[i].scattered(grad, grad_reduce, unit.name)
            for i, grad in zip(split_vjp.moving_others, moved_others, strict=True):
                grads_others[i] = grad
        grads_own = [
            ParamShards(
                _sum(
                    [g for f, g in zip(unit.gather_keys, grads_full, strict=True) if f.leaf == leaf and g is not None]
                ),
                None,
            )
            for leaf in own
        ]
        # Or the compiler would add up what the uses of one parameter leave behind before it is scattered, to scatter
        # once, and until then keep a whole gradient for each.
        if tied and schedule.scatters_first:
            grads_own, grads_others = barrier((grads_own, grads_others))
        elif tied:
            grads_own = barrier(grads_own)
        # Behind the barrier: in front of it, the compiler would not see that a loop collects them on the host.
        grads_own = [jax.tree.map(to_host, g) if leaf in hosted else g for leaf, g in zip(own, grads_own, strict=True)]
        return (
            grads_own,
            None,
            passed_tree.unflatten(grads_others[:n_passed]),
            grads_others[n_passed:],
            None,
            [gathered[f] for f, *_ in given_back],
        )

    call.defvjp(call_forward, backward, symbolic_zeros=True)
    outs, sent, placeholders = call(
        [arrays[leaf] for leaf in own],
        [arrays[leaf] for leaf in prefetched],
        {leaf: arrays[leaf] for leaf in unit.passed},
        list(data),
        [links[f, producer, number] for f, producer in ahead.receive],
        [links[link] for link in given_back],
    )
    links |= {(f, number, to): x for (f, to), x in zip(ahead.send, sent, strict=True)}
    links |= dict(zip(wanted_back, placeholders, strict=True))
    # Shards that it gathers for others would otherwise make its results look as if they carried a gradient.
    return outs if split_vjp.moving_full or split_vjp.moving_others else jax.lax.stop_gradient(outs)


def _replaced(values: Sequence[Any], at: Sequence[int], by: Sequence[Any]) -> list[Any]:
    """The values with some of them replaced."""
    new = dict(zip(at, by, strict=True))
    return [new.get(i, x) for i, x in enumerate(values)]


def _kept(unit: Unit, schedule: Schedule) -> list[DeferredParam]:
    return [f for f in unit.gather_keys if f in schedule.kept]


def _tie(operands: Any, shards: list[ParamShards], tied: bool) -> tuple[Any, list[ParamShards]]:
    """Makes shards wait for operands. Both pass through the barrier, for one whose result is unused is removed."""
    if not tied or not shards or not any(jnp.ndim(x) for x in jax.tree.leaves(operands)):
        return operands, shards
    return barrier((operands, shards))


def barrier(tree: Any) -> Any:
    """An optimisation barrier around all arrays that it can hold."""
    leaves, treedef = jax.tree.flatten(tree)
    plain = [i for i, x in enumerate(leaves) if not jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended)]
    for i, x in zip(plain, jax.lax.optimization_barrier([leaves[i] for i in plain]), strict=True):
        leaves[i] = x
    return treedef.unflatten(leaves)


def is_zero(cotangent: Any) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero) or cotangent.dtype == jax.dtypes.float0


def instantiated(cotangent: Any, like: Any) -> jax.Array:
    return jnp.zeros(like.shape, like.dtype) if is_zero(cotangent) else cotangent


def _sum(grads: list[jax.Array]) -> jax.Array | None:
    """The gradient of a leaf that one unit gathers in several forms; None if it gets none."""
    return functools.reduce(jnp.add, grads) if grads else None
