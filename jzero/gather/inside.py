"""Evaluates programs of which every parameter that is needed has been gathered, and makes units of them.

A unit's own program can be large: a rematerialised region, a loop, a branch. Inside it parameters stay lazy until an
equation needs them, so that casts and rearrangements still come last; what has been gathered for the unit is then at
hand. Only a loop over stacked parameters goes on gathering by itself, layer by layer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import primitives

from jzero import compat
from jzero.collectives import Wire
from jzero.gather.lazy import Lazy, Parts
from jzero.gather.products import apply_primitive
from jzero.gather.pullback import Operands, recomputing_pullback, saving_pullback
from jzero.gather.units import Unit
from jzero.gather.walk import stacked_operands, walk


class Inside:
    """A visitor that runs a program on gathered parameters.

    Args:
        full: form -> gathered parameter.
        arrays: leaf -> its arrays, for whole parameters and for those that a loop slices.
        wire: how gradients travel.
    """

    def __init__(self, full: Mapping[Lazy, jax.Array], arrays: Mapping[int, Parts], wire: Wire):
        self.full, self.arrays, self.wire = full, arrays, wire

    def value(self, x: Any) -> Any:
        """The full array of an operand."""
        if not isinstance(x, Lazy):
            return x
        return x.replayed(x.gathered(self.arrays[x.leaf]) if x.is_whole else self.full[x.form])

    def data(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """An equation without parameters."""
        return compat.bind(eqn, operands)

    def use(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """An equation on full values."""
        return apply_primitive(eqn, [self.value(x) for x in operands])

    def output(self, value: Lazy) -> Any:
        """A parameter that leaves the program."""
        return self.value(value)

    def region(self, eqn: Any, operands: list[Any]) -> list[Any]:
        """A `jax.checkpoint` region; its policy stays, except that it can never save what a loop inside gathers."""
        forms, passed = _needs(eqn, operands)
        data = [x for x in operands if not isinstance(x, Lazy)]

        def body(full, parts, data):
            return _evaluate(eqn, operands, dict(zip(forms, full, strict=True)), dict(parts), data, self.wire)

        remat = jax.checkpoint(body, policy=_policy(eqn), prevent_cse=eqn.params["prevent_cse"])
        return remat([self.full[f] for f in forms], {leaf: self.arrays[leaf] for leaf in passed}, data)

    def loop(self, eqn: Any, operands: list[Any], stacked: Sequence[int]) -> list[Any]:
        """A `scan` that slices the shards of stacked parameters and gathers them in its body, and others before it."""
        from jzero.gather.interpreter import run

        n_consts, n_carry = compat.scan_arity(eqn)
        first_x = n_consts + n_carry
        values = [self.arrays[x.leaf] if i in stacked else self.value(x) for i, x in enumerate(operands)]

        def body(carry: list[Any], xs: list[Any]) -> tuple[list[Any], list[Any]]:
            inputs = [*values[:n_consts], *carry, *xs]
            slices = {operands[i].leaf: inputs[i] for i in stacked}
            inputs = [operands[i].layer if i in stacked else x for i, x in enumerate(inputs)]
            outs = run(eqn.params["jaxpr"], inputs, slices, self.wire, in_loop=True)
            return outs[:n_carry], outs[n_carry:]

        p = eqn.params
        carry, ys = jax.lax.scan(
            body, values[n_consts:first_x], values[first_x:], p["length"], reverse=p["reverse"], unroll=p["unroll"]
        )
        return [*carry, *ys]


def make_unit(eqn: Any, operands: Sequence[Any], wire: Wire) -> Unit | None:
    """Makes a unit of an equation, or nothing if it gathers nothing itself.

    Args:
        eqn: the equation.
        operands: `Lazy` where the operand is a parameter; for data, whether a gradient may flow to it.
        wire: how gradients travel.
    """
    forms, passed = _needs(eqn, operands)
    if not forms:
        return None
    lazies = [x for x in operands if isinstance(x, Lazy)]
    trainable = tuple(any(x.trainable for x in lazies if x.leaf == f.leaf) for f in forms)
    parts = {leaf: _part_shapes(next(x for x in lazies if x.leaf == leaf)) for leaf in passed}
    passed_leaves, passed_tree = jax.tree.flatten(parts)
    data = [(v.aval, x is True) for v, x in zip(eqn.invars, operands, strict=True) if not isinstance(x, Lazy)]
    out_shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.outvars]

    def compute(full: Sequence[jax.Array], others: Sequence[Any]) -> list[jax.Array]:
        parts = passed_tree.unflatten(others[: len(passed_leaves)])
        return _evaluate(eqn, operands, dict(zip(forms, full, strict=True)), parts, others[len(passed_leaves) :], wire)

    shapes, others = [f.shape for f in forms], [*passed_leaves, *[_shape(aval) for aval, _ in data]]
    moving = [
        any(x.trainable for x in lazies if x.leaf == leaf) for leaf in passed for _ in jax.tree.leaves(parts[leaf])
    ]
    moving += [moves for _, moves in data]
    taken = Operands(shapes, trainable, others, moving)
    is_region = eqn.primitive is primitives.remat_p
    if is_region and eqn.params["policy"] is None:
        pullback = recomputing_pullback(compute, taken, out_shapes)
    else:
        if is_region:
            compute = jax.checkpoint(compute, policy=_policy(eqn), prevent_cse=False)
        pullback = saving_pullback(compute, taken, recomputes=is_region)
    name = "checkpoint" if is_region else eqn.primitive.name
    return Unit(name, tuple(forms), tuple(passed), pullback)


def identity_unit(value: Lazy) -> Unit:
    """A unit that only gathers: for a parameter that leaves the program as it is."""
    taken = Operands([value.shape], [value.trainable], [], [])
    pullback = saving_pullback(lambda full, _: [value.replayed(full[0])], taken, recomputes=False)
    return Unit("output", (value.form,), (), pullback)


def _evaluate(eqn, operands, full, arrays, data, wire) -> list[jax.Array]:
    """One equation, with its data operands replaced, on gathered parameters."""
    given = iter(data)
    operands = [x if isinstance(x, Lazy) else next(given) for x in operands]
    inside = Inside(full, arrays, wire)
    if eqn.primitive is primitives.remat_p:
        return walk(eqn.params["jaxpr"], operands, inside)
    if stacked := stacked_operands(eqn, operands):
        return inside.loop(eqn, operands, stacked)
    return inside.use(eqn, operands)


def _policy(eqn: Any) -> Any:
    policy = eqn.params["policy"]

    def saves(primitive: Any, *avals: Any, **params: Any) -> Any:
        return False if primitive is primitives.all_gather_p else policy(primitive, *avals, **params)

    return policy and saves


def _part_shapes(x: Lazy) -> Parts:
    shard = jax.ShapeDtypeStruct(x.placement.shard_shape, x.dtype)
    return Parts(shard, x.shape if x.in_advance else None)


def _shape(aval: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _needs(eqn: Any, operands: Sequence[Any]) -> tuple[list[Lazy], list[int]]:
    """What an equation needs of its parameters: forms to be gathered, in the order of first use, and leaves whose own
    arrays it takes.
    """
    needs = _Needs()
    if eqn.primitive is primitives.remat_p:
        walk(eqn.params["jaxpr"], [x if isinstance(x, Lazy) else None for x in operands], needs)
    elif stacked := stacked_operands(eqn, operands):
        needs.loop(eqn, list(operands), stacked)
    else:
        needs.use(eqn, list(operands))
    return list(needs.forms), sorted(needs.passed)


class _Needs:
    """A visitor that only notes what is needed."""

    def __init__(self):
        self.forms: dict[Lazy, None] = {}
        self.passed: set[int] = set()

    def data(self, eqn: Any, operands: list[Any]) -> list[Any]:
        return [None] * len(eqn.outvars)

    def use(self, eqn: Any, operands: list[Any]) -> list[Any]:
        for x in operands:
            if isinstance(x, Lazy):
                self.output(x)
        return [None] * len(eqn.outvars)

    def region(self, eqn: Any, operands: list[Any]) -> list[Any]:
        walk(eqn.params["jaxpr"], operands, self)
        return [None] * len(eqn.outvars)

    def loop(self, eqn: Any, operands: list[Any], stacked: Sequence[int]) -> list[Any]:
        self.passed |= {operands[i].leaf for i in stacked}
        return self.use(eqn, [None if i in stacked else x for i, x in enumerate(operands)])

    def output(self, value: Lazy) -> Any:
        if value.is_whole:
            self.passed.add(value.leaf)
        else:
            self.forms[value.form] = None
