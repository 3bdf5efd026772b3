"""Gather at use: evaluates the jaxpr of any function with sharded parameters standing in for full ones.

The function is traced with full shapes. A first walk over its jaxpr finds the units, each the use of some parameters by
one equation, and plans their gathers; a second one runs it: equations on data alone as they are, equations that only
rearrange a parameter not at all until its use, and each unit so that it gathers, computes and drops. Whatever this does
not understand is gathered in front of its use: slower, never wrong.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import jax

from jzero.base.types import Casts, Mask, Params, Placements, PyTree
from jzero.gather.schedule.loop_pipeline import GradSums
from jzero.gather.schedule.prefetch import Fence, Limits, look_ahead
from jzero.gather.trace.inside import Inside, Operand, Planned, Rules, identity_unit, make_unit
from jzero.gather.trace.visitor import walk
from jzero.gather.unit.deferred import DeferredParam, ParamShards
from jzero.gather.unit.run import run_unit
from jzero.gather.unit.split_vjp import SplitVJP, is_inexact
from jzero.gather.unit.units import Link, Schedule, Unit, on_its_own
from jzero.jaxpr import Equation, Program, trace
from jzero.jaxpr.primitives import stops_gradient
from jzero.sharding.collectives import GradReduceConfig
from jzero.sharding.host_memory import is_on_host, to_device
from jzero.sharding.placement import path_name


def gather_at_use(
    fn: Callable,
    placements: Placements,
    grad_reduce: GradReduceConfig,
    *,
    casts: Casts,
    trainable: Mask,
    wholes: PyTree | None = None,
    ready: PyTree | None = None,
    limits: Limits | None = None,
    sums: GradSums | None = None,
) -> Callable:
    """Turns a function of full parameters into one of sharded parameters, for use inside `shard_map`.

    Args:
        fn: `fn(params, *args)`, written without a thought of sharding.
        placements: pytree of `Placement` like `params`; leaves with `dim=None` are passed whole.
        grad_reduce: how gradients travel.
        casts: pytree of tuples of dtypes like `params`: what each leaf is cast to before it is gathered.
        trainable: pytree of bool like `params`: whether a leaf gets a gradient.
        wholes: the parameters gathered in advance, a pytree like `params`; then only gradients travel, at each use.
        ready: shards cast in advance, a pytree like `params` with None where a leaf was not; they are what travels.
        limits: how far gathers may run ahead and what stays gathered; without, each use gathers for itself alone.
        sums: parameters in whose shards' place sums of gradients are given, to which loops over layers may add theirs.

    Returns:
        `sharded_fn(params_sharded, *args)` with the same results. Differentiated in reverse mode it gathers parameters
        again in the backward pass, and the gradient of a sharded leaf is already summed over the mesh and scattered;
        that of a whole leaf is the device's own, not summed.
    """

    def sharded_fn(params_sharded: Params, *args: PyTree) -> PyTree:
        paths, treedef = jax.tree_util.tree_flatten_with_path(params_sharded)
        leaves = [leaf for _, leaf in paths]
        given, cast_before = ([None] * len(leaves) if t is None else treedef.flatten_up_to(t) for t in (wholes, ready))
        flat = [treedef.flatten_up_to(t) for t in (placements, casts, trainable)]
        arrays, deferred_params = {}, []
        every = zip(leaves, *flat, given, cast_before, strict=True)
        for i, (shard, placement, cast, train, whole, early) in enumerate(every):
            arrays[i] = ParamShards(shard, None if placement.dim is None else whole, early)
            in_advance, on_host = arrays[i].whole is not None, is_on_host(shard)
            name, dtype = path_name(paths[i][0]), None if early is None else early.dtype
            deferred_params.append(
                DeferredParam(i, name, placement, shard.dtype, cast, in_advance, train, on_host, dtype)
            )
        program, out_shape = trace(fn, treedef.unflatten([x.shape for x in deferred_params]), *args)
        outs = run(program, [*deferred_params, *jax.tree.leaves(args)], arrays, grad_reduce, limits, sums)
        return jax.tree.structure(out_shape).unflatten(outs)

    return sharded_fn


def run(
    program: Program,
    operands: Sequence[Operand],
    arrays: Mapping[int, ParamShards],
    grad_reduce: GradReduceConfig,
    limits: Limits | None = None,
    sums: GradSums | None = None,
    *,
    in_loop: bool = False,
) -> list[jax.Array]:
    """Evaluates a jaxpr on operands of which some may be `DeferredParam`.

    Args:
        program: a jaxpr, closed or open, or a `Subprogram`.
        operands: one value per input.
        arrays: the arrays of every parameter.
        grad_reduce: how gradients travel.
        limits: see `gather_at_use`.
        sums: see `gather_at_use`.
        in_loop: whether this is the body of a loop.

    Returns:
        One array per output.
    """
    plan = _plan(program, operands, grad_reduce, in_loop=in_loop)
    shared = _shared(plan, operands)
    if shared:
        # The gradients of several uses add up, which they cannot do on the host: fetched once, in front of all of them.
        arrays = {**arrays, **{i: ParamShards(*(x if x is None else to_device(x) for x in arrays[i])) for i in shared}}
        operands = [
            replace(x, on_host=False) if isinstance(x, DeferredParam) and x.leaf in shared else x for x in operands
        ]
        plan = _plan(program, operands, grad_reduce, in_loop=in_loop)
    schedules = {} if limits is None else look_ahead(plan.steps, limits)
    return walk(program, operands, _Run(plan, schedules, arrays, sums, tied=not in_loop))


def _run_body(
    program: Program, operands: Sequence[Operand], arrays: Mapping[int, ParamShards], grad_reduce: GradReduceConfig
) -> list[jax.Array]:
    return run(program, operands, arrays, grad_reduce, in_loop=True)


def _plan(program: Program, operands: Sequence[Operand], grad_reduce: GradReduceConfig, *, in_loop: bool) -> "_Plan":
    """The first walk. What enters the program carries no gradient; what enters the body of a loop may."""
    plan = _Plan(grad_reduce)
    walk(program, [x if isinstance(x, DeferredParam) else in_loop and is_inexact(x) for x in operands], plan)
    return plan


def _shared(plan: "_Plan", operands: Sequence[Operand]) -> set[int]:
    """The parameters on the host that several units use."""
    on_host = {x.leaf for x in operands if isinstance(x, DeferredParam) and x.on_host}
    units = [step for step in plan.steps if isinstance(step, Unit)]
    uses = Counter(leaf for unit in units for leaf in {*(key.leaf for key in unit.gather_keys), *unit.passed})
    return {leaf for leaf in on_host if uses[leaf] > 1}


class _Plan:
    """The first walk: finds the units. Data is a bool here: whether a gradient may flow to it.

    Attributes:
        steps: the units and fences in order.
        found: for each equation that takes a parameter, and each parameter that is an output, the number of its unit in
            `steps`; None if it gathers nothing itself.
        known: the computations of units, by what `structural_key` says of them.
        rules: what they run by.
    """

    def __init__(self, grad_reduce: GradReduceConfig):
        self.steps: list[Unit | Fence] = []
        self.found: list[int | None] = []
        self.known: dict[Hashable, SplitVJP] = {}
        self.rules = Rules(grad_reduce, _run_body)

    def data(self, eqn: Equation, operands: list[bool]) -> list[bool]:
        flows = any(x is True for x in operands) and not stops_gradient(eqn)
        return [flows and is_inexact(v.aval) for v in eqn.outvars]

    def use(self, eqn: Equation, operands: list[Planned]) -> list[bool]:
        return self._unit(eqn, operands)

    def region(self, eqn: Equation, operands: list[Planned]) -> list[bool]:
        return self._unit(eqn, operands)

    def loop(self, eqn: Equation, operands: list[Planned], stacked: Mapping[int, DeferredParam]) -> list[bool]:
        self.steps.append(Fence(sum(eqn.invars[i].aval.size for i, x in stacked.items() if not x.is_replicated)))
        return self._unit(eqn, operands)

    def output(self, value: DeferredParam) -> bool:
        self._note(None if value.is_replicated else identity_unit(value))
        return value.trainable

    def _unit(self, eqn: Equation, operands: list[Planned]) -> list[bool]:
        self._note(make_unit(eqn, operands, self.rules, self.known))
        flows = any(x.trainable if isinstance(x, DeferredParam) else x is True for x in operands)
        return [flows and is_inexact(v.aval) for v in eqn.outvars]

    def _note(self, unit: Unit | None) -> None:
        self.found.append(None if unit is None else len(self.steps))
        if unit is not None:
            self.steps.append(unit)


class _Run(Inside):
    """The second walk: comes by the same equations in the same order, and runs the units that the first one found."""

    def __init__(
        self,
        plan: _Plan,
        schedules: Mapping[int, Schedule],
        arrays: Mapping[int, ParamShards],
        sums: GradSums | None,
        *,
        tied: bool,
    ):
        super().__init__({}, arrays, plan.rules)
        self.units = {i: step for i, step in enumerate(plan.steps) if isinstance(step, Unit)}
        self.found = iter(plan.found)
        self.schedules = schedules
        self.links: dict[Link, jax.Array] = {}
        self.sums = sums
        self.tied = tied

    def use(self, eqn: Equation, operands: list[Operand]) -> list[jax.Array]:
        number = next(self.found)
        return super().use(eqn, operands) if number is None else self._unit(number, operands)

    def region(self, eqn: Equation, operands: list[Operand]) -> list[jax.Array]:
        number = next(self.found)
        return super().region(eqn, operands) if number is None else self._unit(number, operands)

    def loop(
        self,
        eqn: Equation,
        operands: list[Operand],
        stacked: Mapping[int, DeferredParam],
        sums: GradSums | None = None,
    ) -> list[jax.Array]:
        del sums
        number = next(self.found)
        # Only a loop that is differentiated as it stands here: what a unit does may be traced once for several.
        return super().loop(eqn, operands, stacked, self.sums) if number is None else self._unit(number, operands)

    def output(self, value: DeferredParam) -> jax.Array:
        number = next(self.found)
        return super().output(value) if number is None else self._unit(number, [])[0]

    def _unit(self, number: int, operands: list[Operand]) -> list[jax.Array]:
        unit = self.units[number]
        schedule = self.schedules.get(number) or on_its_own(unit)
        data = [x for x in operands if not isinstance(x, DeferredParam)]
        handed_on = (*schedule.ahead.send, *schedule.back.send)
        uses = {gather_key: self.units[to].name for gather_key, to in handed_on} | dict.fromkeys(
            unit.gather_keys, unit.name
        )
        return run_unit(
            unit, number, schedule, uses, data, self.arrays, self.links, self.rules.grad_reduce, tied=self.tied
        )
