"""Evaluates programs of which every parameter that is needed has been gathered, and makes units of them.

A unit's own program can be large: a rematerialised region, a loop, a branch. Inside it parameters stay deferred until
an equation needs them, so that casts and rearrangements still come last; what has been gathered for the unit is then at
hand. Only a loop over stacked parameters goes on gathering by itself, layer by layer.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, cast

import jax

from jzero.gather.schedule.loop_pipeline import Body, GradSums, Inputs, pipelined_scan
from jzero.gather.trace.regions import remat_regions
from jzero.gather.trace.structural_keys import structural_key
from jzero.gather.trace.visitor import Data, stacked_operands, walk
from jzero.gather.unit.deferred import DeferredParam, ParamShards
from jzero.gather.unit.products import apply_primitive
from jzero.gather.unit.split_vjp import Operands, SplitVJP, is_inexact, recomputing_vjp, saving_vjp
from jzero.gather.unit.units import Unit
from jzero.jaxpr import Equation, Program, bind, called_program, name_of, scan_arity
from jzero.jaxpr.params import remat_of, scan_of
from jzero.jaxpr.policies import OFFLOAD, never_gathered
from jzero.jaxpr.primitives import is_remat, stops_gradient
from jzero.jaxpr.program import ShapedArray
from jzero.sharding.collectives import GradReduceConfig
from jzero.sharding.host_memory import abstract

Operand: TypeAlias = jax.Array | DeferredParam
"""What an equation takes in a program that runs."""

Planned: TypeAlias = bool | DeferredParam
"""What it takes in one that is only planned; for data, whether a gradient may flow to it."""

RunBody: TypeAlias = Callable[
    [Program, Sequence[Operand], Mapping[int, ParamShards], GradReduceConfig], list[jax.Array]
]
"""`interpreter.run` for a loop body that gathers by itself: (program, operands, arrays, grad_reduce) -> outputs."""


class Rules(NamedTuple):
    """What everything inside of a unit runs by.

    Attributes:
        grad_reduce: how gradients travel.
        run_body: how the body of a loop is run that gathers by itself.
    """

    grad_reduce: GradReduceConfig
    run_body: RunBody


class Inside:
    """A visitor that runs a program on gathered parameters.

    Args:
        full: gather key -> gathered parameter.
        arrays: leaf -> its arrays, for whole parameters and for those that a loop slices.
        rules: what it runs by.
    """

    def __init__(self, full: Mapping[DeferredParam, jax.Array], arrays: Mapping[int, ParamShards], rules: Rules):
        self.full, self.arrays, self.rules = full, arrays, rules
        self.regions: dict[Hashable, Callable] = {}

    def value(self, x: Operand) -> jax.Array:
        """The full array of an operand."""
        if not isinstance(x, DeferredParam):
            return x
        return x.replayed(x.gathered(self.arrays[x.leaf]) if x.is_replicated else self.full[x.gather_key])

    def data(self, eqn: Equation, operands: list[jax.Array]) -> list[jax.Array]:
        """An equation without parameters."""
        return bind(eqn, operands)

    def use(self, eqn: Equation, operands: list[Operand]) -> list[jax.Array]:
        """An equation on full values."""
        return apply_primitive(eqn, [self.value(x) for x in operands])

    def output(self, value: DeferredParam) -> jax.Array:
        """A parameter that leaves the program."""
        return self.value(value)

    def region(self, eqn: Equation, operands: list[Operand]) -> list[jax.Array]:
        """A `jax.checkpoint` region; its policy stays, except that it can never save what a loop inside gathers."""
        gather_keys, passed = _needs(eqn, operands)

        def body(full, parts, data):
            full, parts = dict(zip(gather_keys, full, strict=True)), dict(zip(passed, parts, strict=True))
            return _evaluate(eqn, operands, full, parts, data, self.rules)

        computation = _computation(eqn, operands, passed)
        if computation not in self.regions:
            region = remat_of(eqn)
            policy = never_gathered(region.policy)
            self.regions[computation] = jax.checkpoint(body, policy=policy, prevent_cse=region.prevent_cse)
        data = [x for x in operands if not isinstance(x, DeferredParam)]
        full = [self.full[key] for key in gather_keys]
        return self.regions[computation](full, [self.arrays[leaf] for leaf in passed], data)

    def loop(
        self,
        eqn: Equation,
        operands: list[Operand],
        stacked: Mapping[int, DeferredParam],
        sums: GradSums | None = None,
    ) -> list[jax.Array]:
        """A `scan` that slices the shards of stacked parameters and gathers them in its body, and others before it."""
        scan, (n_consts, n_carry) = scan_of(eqn), scan_arity(eqn)
        first_x = n_consts + n_carry
        values = [self.arrays[stacked[i].leaf] if i in stacked else self.value(x) for i, x in enumerate(operands)]
        if self.rules.grad_reduce.pipelined and scan.length > 1:
            layers = [stacked[i].layer if i in stacked else cast(jax.Array, x) for i, x in enumerate(values)]
            if (outs := _pipelined(eqn, layers, values, self.rules, sums)) is not None:
                return outs

        def body(carry: list[jax.Array], xs: list[jax.Array | ParamShards]) -> tuple[list[jax.Array], list[jax.Array]]:
            inputs = [*values[:n_consts], *carry, *xs]
            slices = {x.leaf: cast(ParamShards, inputs[i]) for i, x in stacked.items()}
            layers = [stacked[i].layer if i in stacked else cast(jax.Array, x) for i, x in enumerate(inputs)]
            outs = self.rules.run_body(scan.program, layers, slices, self.rules.grad_reduce)
            return outs[:n_carry], outs[n_carry:]

        carry, ys = jax.lax.scan(
            body,
            cast(list[jax.Array], values[n_consts:first_x]),
            values[first_x:],
            scan.length,
            reverse=scan.reverse,
            unroll=scan.unroll,
        )
        return [*carry, *ys]


def _pipelined(
    eqn: Equation,
    layers: Sequence[Operand],
    values: Sequence[jax.Array | ParamShards],
    rules: Rules,
    sums: GradSums | None,
) -> list[jax.Array] | None:
    """Runs a loop as a pipeline, or returns nothing if its body gathers nothing itself, or offloads its inputs.

    Args:
        eqn: the `scan`.
        layers: its operands; of stacked parameters what one iteration sees.
        values: its operands; of stacked parameters their arrays.
        rules: what it runs by.
        sums: what gradients are added to.
    """
    scan, (n_consts, n_carry) = scan_of(eqn), scan_arity(eqn)
    program = scan.program
    # A pipeline keeps what its iterations take on the devices.
    if any(remat_of(region).policy is OFFLOAD for region in remat_regions(program)):
        return None
    needs = _Needs()
    walk(program, [x if isinstance(x, DeferredParam) else False for x in layers], needs)
    gather_keys, passed = list(needs.gather_keys), sorted(needs.passed)
    if not gather_keys:
        return None
    deferred_params = {x.leaf: x for x in layers if isinstance(x, DeferredParam)}
    each = zip(layers, values, strict=True)
    arrays = {x.leaf: cast(ParamShards, parts) for x, parts in each if isinstance(x, DeferredParam)}

    def operands(inputs: Inputs, carry: Sequence[Data]) -> list[Data | DeferredParam]:
        xs, consts = iter(cast(list[Data], inputs.xs)), cast(list[Data], inputs.consts)
        sliced = [x if isinstance(x, DeferredParam) else next(xs) for x in layers[n_consts + n_carry :]]
        return [*consts, *carry, *sliced]

    def compute(full: Sequence[jax.Array], carry: Sequence[jax.Array]) -> list[jax.Array]:
        own = dict(zip(gather_keys, full[: len(gather_keys)], strict=True))
        given = structure.unflatten(full[len(gather_keys) :])
        return walk(program, operands(given, carry), Inside(own, given.passed, rules))

    inputs = Inputs(
        {leaf: arrays[leaf] for leaf in passed},
        [x for x in values[n_consts + n_carry :] if not isinstance(x, ParamShards)],
        cast(list[jax.Array], list(values[:n_consts])),
    )
    structure = jax.tree.structure(inputs)
    body = Body(
        compute,
        lambda inputs, carry: walk(program, operands(inputs, carry), _Needs()),
        gather_keys,
        [deferred_params[key.leaf].trainable for key in gather_keys],
        scan.length,
        scan.reverse,
        scan.unroll,
    )
    stacks = {key.leaf: arrays[key.leaf] for key in gather_keys}
    first = cast(list[jax.Array], list(values[n_consts : n_consts + n_carry]))
    return pipelined_scan(body, stacks, inputs, first, rules.grad_reduce, sums)


def make_unit(eqn: Equation, operands: Sequence[Planned], rules: Rules, known: dict[Hashable, SplitVJP]) -> Unit | None:
    """Makes a unit of an equation, or nothing if it gathers nothing itself and offloads nothing.

    Args:
        eqn: the equation.
        operands: `DeferredParam` where the operand is a parameter; for data, whether a gradient may flow to it.
        rules: what it runs by.
        known: computations of units made before, which those of the same structure share; this one's is added.
    """
    gather_keys, passed = _needs(eqn, operands)
    is_region = is_remat(eqn)
    offloads = is_region and remat_of(eqn).policy is OFFLOAD
    if not gather_keys and not offloads:
        return None
    key = _computation(eqn, operands, passed)
    if key not in known:
        known[key] = _split_vjp(eqn, operands, gather_keys, passed, rules)
    name = "checkpoint" if is_region else name_of(eqn)
    return Unit(name, tuple(gather_keys), tuple(passed), known[key], offloads)


def _computation(eqn: Equation, operands: Sequence[Planned] | Sequence[Operand], passed: Sequence[int]) -> Hashable:
    """Equal for equations that may share their computation."""
    # What a loop inside gathers is called by its own name, so that nothing else can have the same computation.
    names = [x.name for x in operands if isinstance(x, DeferredParam) and x.leaf in passed and not x.is_replicated]
    return structural_key(eqn, operands), *names


def _split_vjp(
    eqn: Equation,
    operands: Sequence[Planned],
    gather_keys: list[DeferredParam],
    passed: list[int],
    rules: Rules,
) -> SplitVJP:
    """The computation of a unit: of what it gathers, of the arrays that are passed to it, and of data."""
    is_region = is_remat(eqn)
    deferred_params = [x for x in operands if isinstance(x, DeferredParam)]
    trainable = tuple(any(x.trainable for x in deferred_params if x.leaf == key.leaf) for key in gather_keys)
    parts = {leaf: _part_shapes(next(x for x in deferred_params if x.leaf == leaf)) for leaf in passed}
    passed_leaves, passed_tree = jax.tree.flatten(parts)
    data = [(v.aval, x is True) for v, x in zip(eqn.invars, operands, strict=True) if not isinstance(x, DeferredParam)]
    out_shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.outvars]

    def compute(full: Sequence[jax.Array], others: Sequence[jax.Array]) -> list[jax.Array]:
        parts = passed_tree.unflatten(others[: len(passed_leaves)])
        return _evaluate(
            eqn, operands, dict(zip(gather_keys, full, strict=True)), parts, others[len(passed_leaves) :], rules
        )

    shapes, others = [key.shape for key in gather_keys], [*passed_leaves, *[_shape(aval) for aval, _ in data]]
    moving = [
        any(x.trainable for x in deferred_params if x.leaf == leaf)
        for leaf in passed
        for _ in jax.tree.leaves(parts[leaf])
    ]
    moving += [moves for _, moves in data]
    taken = Operands(shapes, trainable, others, moving)
    if is_region and remat_of(eqn).policy in (None, OFFLOAD):
        return recomputing_vjp(compute, taken, out_shapes)
    if is_region:
        compute = jax.checkpoint(compute, policy=never_gathered(remat_of(eqn).policy), prevent_cse=False)
    return saving_vjp(compute, taken, recomputes=is_region)


def identity_unit(value: DeferredParam) -> Unit:
    """A unit that only gathers: for a parameter that leaves the program as it is."""
    taken = Operands([value.shape], [value.trainable], [], [])
    split_vjp = saving_vjp(lambda full, _: [value.replayed(full[0])], taken, recomputes=False)
    return Unit("output", (value.gather_key,), (), split_vjp)


def _evaluate(
    eqn: Equation,
    operands: Sequence[object],
    full: Mapping[DeferredParam, jax.Array],
    arrays: Mapping[int, ParamShards],
    data: Sequence[jax.Array],
    rules: Rules,
) -> list[jax.Array]:
    """One equation, with its data operands replaced, on gathered parameters."""
    given = iter(data)
    inputs = [x if isinstance(x, DeferredParam) else next(given) for x in operands]
    inside = Inside(full, arrays, rules)
    if is_remat(eqn):
        return walk(called_program(eqn), inputs, inside)
    if stacked := stacked_operands(eqn, inputs):
        return inside.loop(eqn, inputs, stacked)
    return inside.use(eqn, inputs)


def _part_shapes(x: DeferredParam) -> ParamShards:
    like = cast(Callable[..., jax.Array], abstract)  # shapes in the place of arrays
    shard = like(x.placement.shard_shape, x.dtype, on_host=x.on_host)
    ready = None if x.ready is None else like(x.placement.shard_shape, x.ready, on_host=x.on_host)
    return ParamShards(shard, cast(jax.Array, x.shape) if x.in_advance else None, ready)


def _shape(aval: ShapedArray) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _needs(eqn: Equation, operands: Sequence[Planned] | Sequence[Operand]) -> tuple[list[DeferredParam], list[int]]:
    """What an equation needs of its parameters: gather keys, in the order of first use, and leaves whose own arrays
    it takes.
    """
    needs = _Needs()
    if is_remat(eqn):
        walk(called_program(eqn), [x if isinstance(x, DeferredParam) else False for x in operands], needs)
    elif stacked := stacked_operands(eqn, operands):
        needs.loop(eqn, cast(list[Planned], list(operands)), stacked)
    else:
        needs.use(eqn, cast(list[Planned], list(operands)))
    return list(needs.gather_keys), sorted(needs.passed)


class _Needs:
    """A visitor that only notes what is needed. Data is a bool: whether a gradient may flow to it."""

    def __init__(self):
        self.gather_keys: dict[DeferredParam, None] = {}
        self.passed: set[int] = set()

    def data(self, eqn: Equation, operands: list[bool]) -> list[bool]:
        flows = any(x is True for x in operands) and not stops_gradient(eqn)
        return [flows and is_inexact(v.aval) for v in eqn.outvars]

    def use(self, eqn: Equation, operands: list[Planned]) -> list[bool]:
        return self.data(eqn, [self.output(x) if isinstance(x, DeferredParam) else x for x in operands])

    def region(self, eqn: Equation, operands: list[Planned]) -> list[bool]:
        return walk(called_program(eqn), operands, self)

    def loop(self, eqn: Equation, operands: list[Planned], stacked: Mapping[int, DeferredParam]) -> list[bool]:
        self.passed |= {x.leaf for x in stacked.values()}
        return self.use(eqn, [stacked[i].trainable if i in stacked else x for i, x in enumerate(operands)])

    def output(self, value: DeferredParam) -> bool:
        if value.is_replicated:
            self.passed.add(value.leaf)
        else:
            self.gather_keys[value.gather_key] = None
        return value.trainable
