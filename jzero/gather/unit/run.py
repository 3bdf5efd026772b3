"""One use of parameters: gather, compute, drop; in the backward pass gather again, compute the cotangents, scatter.

A unit also starts gathers for units that come later in either pass, tied by a barrier to its own input so that they
start no earlier, and hands on what it has gathered. Forward, gathered parameters travel between units as ordinary
values. Backward they travel in the place of cotangents: a unit that wants a parameter gathered by a later unit of the
forward pass, which is an earlier one of the backward pass, gives it a value of that parameter's shape, never read, and
finds the parameter in the cotangent that comes back.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar, cast

import jax
import jax.numpy as jnp

from jzero.base.types import PyTree, TreeDef
from jzero.gather.unit.deferred import DeferredParam, ParamShards
from jzero.gather.unit.split_vjp import Shape, is_inexact
from jzero.gather.unit.units import Link, Schedule, Unit
from jzero.sharding.collectives import GradReduceConfig
from jzero.sharding.host_memory import to_device, to_host

Tree = TypeVar("Tree")
"""A pytree of arrays; what comes of it has the same structure."""

_SUMS_OF = 16
"""Gradients so many times smaller than what goes on are sums over its rows, not products with it."""

Cotangent: TypeAlias = jax.Array | jax.custom_derivatives.SymbolicZero

Results: TypeAlias = tuple[list[jax.Array], list[jax.Array], list[jax.Array]]
"""What the forward half of a unit gives: its outputs, what it hands on, and places for what comes back."""


class Forward(NamedTuple):
    """What the forward half of a unit takes: shards of its own and of what it gathers for others, and the rest.

    Attributes:
        own: arrays of the parameters that it uses.
        prefetched: arrays of those that it gathers for other units alone.
        passed: leaf -> arrays that go in as they are.
        data: its operands that are no parameters.
        received: what units before it have gathered for it.
        placeholders: values whose cotangents are what it hands on backward.
    """

    own: list[ParamShards]
    prefetched: list[ParamShards]
    passed: dict[int, ParamShards]
    data: list[jax.Array]
    received: list[jax.Array]
    placeholders: list[jax.Array]


class Residuals(NamedTuple):
    """What a unit keeps for the backward pass: shards, what its computation keeps, and what stays gathered."""

    own: list[ParamShards]
    prefetched: list[ParamShards]
    kept: list[jax.Array]
    kept_full: list[jax.Array]


@dataclass(frozen=True, eq=False)
class _UnitRun:
    """A unit that is run: what its two halves share.

    Attributes:
        unit, number, schedule, uses, grad_reduce, tied: see `run_unit`.
        own: leaves of the parameters that it uses.
        prefetched: leaves of those that it gathers for other units alone.
        passed_tree: the structure of the arrays that are passed.
        n_data: how many operands are no parameters.
    """

    unit: Unit
    number: int
    schedule: Schedule
    uses: Mapping[DeferredParam, str]
    grad_reduce: GradReduceConfig
    tied: bool
    own: list[int]
    prefetched: list[int]
    passed_tree: TreeDef
    n_data: int

    # The unit that will want a parameter backward hands a placeholder forward to the unit that gathers it, and the
    # parameter comes back as that placeholder's cotangent. Links name the later unit first, so that none of them is
    # also a forward link.
    @property
    def wanted_back(self) -> list[Link]:
        """What it gets from later units in the backward pass."""
        return [(key, producer, self.number) for key, producer in self.schedule.back.receive]

    @property
    def given_back(self) -> list[Link]:
        """What it hands on to earlier units in the backward pass."""
        return [(key, self.number, receiver) for key, receiver in self.schedule.back.send]

    @property
    def n_passed(self) -> int:
        return self.passed_tree.num_leaves

    @property
    def on_host(self) -> list[int]:
        """Which of the operands that it keeps wait in host memory."""
        return [i for i in self.unit.split_vjp.moving_others if i >= self.n_passed] if self.unit.offloads else []

    def at_hand(self, shards: Forward | Residuals) -> tuple[dict[int, ParamShards], dict[DeferredParam, jax.Array]]:
        """The arrays of each leaf, and what was gathered in advance."""
        parts = dict(zip([*self.own, *self.prefetched], [*shards.own, *shards.prefetched], strict=True))
        return parts, {key: key.gathered(parts[key.leaf]) for key in self.unit.gather_keys if key.in_advance}

    def forward(self, given: Forward) -> tuple[Results, Residuals]:
        """(results, what it hands on, places for what comes back), and what it keeps."""
        unit, ahead = self.unit, self.schedule.ahead
        parts, in_advance = self.at_hand(given)
        others, received = [*jax.tree.leaves(given.passed), *given.data], given.received
        # What has arrived is tied too: gathers for later units then cannot overtake or be merged with it.
        (others, received), gathering = _tie((others, received), [parts[key.leaf] for key in ahead.gather], self.tied)
        gathered = {key: key.gathered(p, self.uses[key]) for key, p in zip(ahead.gather, gathering, strict=True)}
        gathered |= in_advance
        gathered |= dict(zip([key for key, _ in ahead.receive], received, strict=True))
        outs, kept = unit.split_vjp.forward([gathered[key] for key in unit.gather_keys], others)
        if self.on_host:
            # Or the compiler would put the copy off until the backward pass and hold the value on the device meanwhile.
            # A loop copies in every iteration anyway, and XLA has no barrier for what it stacks in host memory.
            away = [to_host(kept[i]) for i in self.on_host]
            outs, away = barrier((outs, away)) if self.tied else (outs, away)
            kept = _replaced(kept, self.on_host, away)
        sent = [gathered[key] for key, _ in ahead.send]
        placeholders = [jnp.zeros(key.shape.shape, key.shape.dtype) for key, *_ in self.wanted_back]
        kept_full = [gathered[key] for key in _kept(unit, self.schedule)]
        return (outs, sent, placeholders), Residuals(given.own, given.prefetched, kept, kept_full)

    def backward(self, residuals: Residuals, cotangents: "Results") -> tuple[PyTree, ...]:
        """The cotangents of what `Forward` holds, from those of what `forward` returns."""
        grads_out, _, came_back = cotangents
        has_gradient = not all(is_zero(g) for g in grads_out)
        shapes = self.unit.split_vjp.out_shapes
        grads_out = [instantiated(g, s) for g, s in zip(grads_out, shapes, strict=True) if is_inexact(s)]
        gathered, kept, grads_out = self._gathered_again(residuals, came_back, grads_out)
        grads_full: list[jax.Array | None] = [None] * len(self.unit.gather_keys)
        grads_others: list[jax.Array | None] = [None] * (self.n_passed + self.n_data)
        if has_gradient:
            self._pull(gathered, kept, grads_out, grads_full, grads_others)
        grads_own = self._by_leaf(grads_full)
        # Or the compiler would add up what the uses of one parameter leave behind before it is scattered, to scatter
        # once, and until then keep a whole gradient for each.
        if self.tied and self.schedule.scatters_first:
            grads_own, grads_others = barrier((grads_own, grads_others))
        elif self.tied:
            grads_own = barrier(grads_own)
        # Behind the barrier: in front of it, the compiler would not see that a loop collects them on the host.
        hosted = {key.leaf for key in self.unit.gather_keys if key.on_host}
        by_leaf = zip(self.own, grads_own, strict=True)
        return (
            [jax.tree.map(to_host, g) if leaf in hosted else g for leaf, g in by_leaf],
            None,
            self.passed_tree.unflatten(grads_others[: self.n_passed]),
            grads_others[self.n_passed :],
            None,
            [gathered[key] for key, *_ in self.given_back],
        )

    def _gathered_again(
        self, residuals: Residuals, came_back: Sequence[Cotangent], grads_out: list[jax.Array]
    ) -> tuple[dict[DeferredParam, jax.Array], list[jax.Array], list[jax.Array]]:
        """What the backward half reads: gathered parameters, what was kept, and the cotangents of the results."""
        unit, split_vjp, back = self.unit, self.unit.split_vjp, self.schedule.back
        parts, gathered = self.at_hand(residuals)
        gathered |= dict(zip(_kept(unit, self.schedule), residuals.kept_full, strict=True))
        gathered |= {
            key: cast(jax.Array, x) for (key, *_), x in zip(self.wanted_back, came_back, strict=True) if not is_zero(x)
        }
        needed = [key for key, n in zip(unit.gather_keys, split_vjp.needs, strict=True) if n]
        needed += [key for key, _ in back.send]
        gather = list(dict.fromkeys([*back.gather, *(key for key in needed if key not in gathered)]))
        kept, waiting = residuals.kept, [parts[key.leaf] for key in gather]
        if self.tied and (waiting or split_vjp.recomputes):
            # Or the compiler would find what is gathered and computed here equal to the forward pass, and keep that.
            here = list(gathered.values())
            kept, grads_out, here, waiting = barrier((kept, grads_out, here, waiting))
            gathered = dict(zip(gathered, here, strict=True))
        gathered |= {key: key.gathered(p, self.uses[key]) for key, p in zip(gather, waiting, strict=True)}
        return gathered, _replaced(kept, self.on_host, [to_device(kept[i]) for i in self.on_host]), grads_out

    def _pull(
        self,
        gathered: Mapping[DeferredParam, jax.Array],
        kept: list[jax.Array],
        grads_out: list[jax.Array],
        grads_full: list[jax.Array | None],
        grads_others: list[jax.Array | None],
    ) -> None:
        """Computes gradients, scatters those of parameters, and puts all of them into the two lists."""
        unit, split_vjp = self.unit, self.unit.split_vjp
        moved, moved_others = split_vjp.backward([gathered.get(key) for key in unit.gather_keys], kept, grads_out)
        if self.tied and split_vjp.recomputes:
            # Gradients are wanted at the end of the step only. The scheduler would compute some of them there and keep
            # what they are made of; so nothing leaves before they are there. Of those that are sent beside products
            # the products have to be free, or there are too few.
            if self.grad_reduce.pipelined:
                moved_others = barrier(moved_others)
            else:
                moved, moved_others = barrier((moved, moved_others))
        elif self.tied and _n_bytes(moved) * _SUMS_OF < _n_bytes(moved_others):
            # The sums that a bias's gradient is would be taken at the end, and what they are taken of kept until then.
            moved, moved_others = barrier((moved, moved_others))
        for i, grad in zip(split_vjp.moving_full, moved, strict=True):
            grads_full[i] = unit.gather_keys[i].scattered(grad, self.grad_reduce, unit.name)
        for i, grad in zip(split_vjp.moving_others, moved_others, strict=True):
            grads_others[i] = grad

    def _by_leaf(self, grads_full: Sequence[jax.Array | None]) -> list[ParamShards]:
        """The gradient of each parameter of its own, summed over the gather keys under which it was gathered."""
        found = [(key.leaf, g) for key, g in zip(self.unit.gather_keys, grads_full, strict=True) if g is not None]
        return [ParamShards(_sum([g for of, g in found if of == leaf]), None) for leaf in self.own]


def run_unit(
    unit: Unit,
    number: int,
    schedule: Schedule,
    uses: Mapping[DeferredParam, str],
    data: Sequence[jax.Array],
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
        uses: the primitive that needs each gather key, its own or a later one.
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
    own = sorted({key.leaf for key in unit.gather_keys})
    prefetched = sorted({key.leaf for key in (*ahead.gather, *back.gather)} - set(own))
    passed = {leaf: arrays[leaf] for leaf in unit.passed}
    tree = jax.tree.structure(passed)
    run = _UnitRun(unit, number, schedule, uses, grad_reduce, tied, own, prefetched, tree, len(data))
    outs, sent, placeholders = _differentiable(run)(
        [arrays[leaf] for leaf in own],
        [arrays[leaf] for leaf in prefetched],
        passed,
        list(data),
        [links[key, producer, number] for key, producer in ahead.receive],
        [links[link] for link in run.given_back],
    )
    links |= {(key, number, to): x for (key, to), x in zip(ahead.send, sent, strict=True)}
    links |= dict(zip(run.wanted_back, placeholders, strict=True))
    # Shards that it gathers for others would otherwise make its results look as if they carried a gradient.
    return outs if split_vjp.moving_full or split_vjp.moving_others else jax.lax.stop_gradient(outs)


def _differentiable(run: _UnitRun) -> Callable[..., Results]:
    """The unit as a function of what `Forward` holds, with its own rule for the backward pass."""

    @jax.custom_vjp
    def call(*operands):
        return run.forward(Forward(*operands))[0]

    def call_forward(*operands):
        is_primal = lambda x: hasattr(x, "perturbed")
        flags = [x.perturbed and is_inexact(x.value) for x in operands[3]]
        unforeseen = {run.n_passed + i for i, p in enumerate(flags) if p} - {*run.unit.split_vjp.moving_others}
        assert not unforeseen, f"operands {unforeseen} of {run.unit.name} carry a gradient, but only parameters should"
        return run.forward(Forward(*jax.tree.map(lambda x: x.value, operands, is_leaf=is_primal)))

    call.defvjp(call_forward, run.backward, symbolic_zeros=True)
    return call


def _replaced(values: Sequence[jax.Array], at: Sequence[int], by: Sequence[jax.Array]) -> list[jax.Array]:
    """The values with some of them replaced."""
    new = dict(zip(at, by, strict=True))
    return [new.get(i, x) for i, x in enumerate(values)]


def _kept(unit: Unit, schedule: Schedule) -> list[DeferredParam]:
    return [key for key in unit.gather_keys if key in schedule.kept]


def _tie(operands: Tree, shards: list[ParamShards], tied: bool) -> tuple[Tree, list[ParamShards]]:
    """Makes shards wait for operands. Both pass through the barrier, for one whose result is unused is removed."""
    if not tied or not shards or not any(jnp.ndim(x) for x in jax.tree.leaves(operands)):
        return operands, shards
    return barrier((operands, shards))


def _n_bytes(arrays: Sequence[jax.Array]) -> int:
    return sum(x.size * x.dtype.itemsize for x in arrays)


def barrier(tree: Tree) -> Tree:
    """An optimisation barrier around all arrays that it can hold."""
    leaves, treedef = jax.tree.flatten(tree)
    plain = [i for i, x in enumerate(leaves) if not jnp.issubdtype(jnp.result_type(x), jax.dtypes.extended)]
    for i, x in zip(plain, jax.lax.optimization_barrier([leaves[i] for i in plain]), strict=True):
        leaves[i] = x
    return treedef.unflatten(leaves)


def is_zero(cotangent: Cotangent) -> bool:
    return isinstance(cotangent, jax.custom_derivatives.SymbolicZero) or cotangent.dtype == jax.dtypes.float0


def instantiated(cotangent: Cotangent, like: Shape) -> jax.Array:
    return jnp.zeros(like.shape, like.dtype) if is_zero(cotangent) else cast(jax.Array, cotangent)


def _sum(grads: list[jax.Array]) -> jax.Array | None:
    """The gradient of a leaf that one unit gathers under several keys; None if it gets none."""
    return functools.reduce(jnp.add, grads) if grads else None
