"""Finds the collectives of a program: what travels, between whom, how often, and which matrix products run beside it.

XLA writes one and the same collective as a plain operation, as a start and a done, or as a fusion inside an
asynchronous call; all become the same `Collective` here. Sizes are those the text states: where XLA widened bf16 to
f32, f32 counts.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from jzero.plan.compiled.flops import FlopCounter
from jzero.plan.compiled.groups import read_groups
from jzero.plan.compiled.hlo import Array, Computation, Instruction, Module, Type, leaves
from jzero.plan.compiled.loops import executions, innermost_loops
from jzero.plan.hardware.links import GroupTraffic, LinkTraffic, divided

KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclasses.dataclass(frozen=True)
class Collective:
    """One array that travels; a collective over a tuple of arrays is one `Collective` per array, under the same name.

    Attributes:
        kind: one of `KINDS`.
        dtype: HLO dtype name, such as "bf16".
        shape: of the payload: the gathered output, the unscattered input, the operand of an all-reduce.
        n_bytes: bytes of the payload, per device and execution.
        wire_bytes: bytes one device sends per execution: (n-1)/n of the payload, twice that for an all-reduce, all of
            it for a permutation or broadcast.
        group_size: n, the devices that take part together.
        per_node: how many of them share a node; n where the collective stays inside of nodes.
        axes: the mesh axes longer than 1 along which they lie; None where that is not known.
        name: of the instruction.
        computation: that schedules it; the loop body, for a collective in a loop.
        loop: the body of the innermost loop around it; None outside of loops.
        executions: runs per run of the program, trip counts of enclosing loops multiplied in.
        executions_known: False where an enclosing loop's length depends on data; it then counts as one round.
        asynchronous: whether other work may run between its start and its done.
        overlapped_flops: matrix-product flops scheduled between the two, per execution; the arrays of one tuple
            share them.
        op_name: JAX's name stack.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...]
    n_bytes: int
    wire_bytes: int
    group_size: int
    per_node: int
    axes: tuple[str, ...] | None
    name: str
    computation: str
    loop: str | None
    executions: int
    executions_known: bool
    asynchronous: bool
    overlapped_flops: int
    op_name: str


def read_collectives(
    module: Module, mesh_shape: Mapping[str, int] | None = None, nodes: Sequence[int] = ()
) -> tuple[Collective, ...]:
    """Lists the collectives of a parsed program, in the order they are printed.

    Args:
        module: from `jzero.plan.compiled.hlo.parse_module`.
        mesh_shape: axis name -> size, to name the axes each one runs along.
        nodes: the node of each device, in the program's order; by default all share one.

    Returns:
        One entry per array that travels; what never runs is left out.
    """
    runs, loops = executions(module), innermost_loops(module)
    flops = FlopCounter(module)
    wrappers = _wrappers(module)
    found: list[Collective] = []
    for inner_name, computation in module.computations.items():
        n_executions, executions_known = runs[inner_name]
        for line in computation.instructions.values():
            kind = line.opcode.removesuffix("-start")
            if kind not in KINDS or not n_executions:
                continue
            # A collective in a fusion or an asynchronous computation is scheduled where that is called.
            outer_name, site = wrappers.get(inner_name, (inner_name, line))
            asynchronous = site.opcode.endswith("-start") and '"is_sync":true' not in line.attributes + site.attributes
            between = list(between_start_and_done(module.computations[outer_name], site)) if asynchronous else []
            groups = read_groups(line, module.n_partitions, mesh_shape)
            for array in _payload(kind, line, groups.size):
                found.append(
                    Collective(
                        kind=kind,
                        dtype=array.dtype,
                        shape=array.shape,
                        n_bytes=array.n_bytes,
                        wire_bytes=_wire_bytes(kind, array.n_bytes, groups.size),
                        group_size=groups.size,
                        per_node=groups.per_node(nodes),
                        axes=groups.axes,
                        name=site.name,
                        computation=outer_name,
                        loop=loops.get(outer_name),
                        executions=n_executions,
                        executions_known=executions_known,
                        asynchronous=asynchronous,
                        overlapped_flops=sum(flops.instruction(outer_name, other) for other in between),
                        op_name=line.op_name or site.op_name,
                    )
                )
    return tuple(found)


def overlapped_share(collectives: Iterable[Collective]) -> float:
    """Share of the payload bytes that travel beside matrix products, however short; 1.0 where nothing travels."""
    sizes = [(c.n_bytes * c.executions, c.overlapped_flops > 0) for c in collectives]
    total = sum(size for size, _ in sizes)
    return sum(size for size, overlapped in sizes if overlapped) / total if total else 1.0


def _wrappers(module: Module) -> dict[str, tuple[str, Instruction]]:
    """Computation -> (caller, instruction) for those that stand for one kernel or one asynchronous operation."""
    return {
        callee: (name, line)
        for name, computation in module.computations.items()
        for line in computation.instructions.values()
        if line.opcode == "fusion" or line.opcode.endswith("-start")
        for callee in line.called
    }


def between_start_and_done(computation: Computation, start: Instruction) -> Iterator[Instruction]:
    """The instructions scheduled after a start and before its done; async-update steps pass the start on."""
    lines = iter(computation.instructions.values())
    for line in lines:
        if line is start:
            break
    in_flight = start.name
    for line in lines:
        if in_flight not in line.operands:
            yield line
        elif line.opcode.endswith("-update"):
            in_flight = line.name
        else:
            return


def _payload(kind: str, line: Instruction, group_size: int) -> list[Array]:
    """The arrays a collective carries, each in its full size."""
    results = list(leaves(_result_type(line)))
    if kind == "reduce-scatter":
        return [_unscattered(array, line, group_size) for array in results]
    if kind == "all-to-all" and len(results) > 1 and line.attribute("dimensions") is None:
        # One array per peer: together they are the one that travels.
        return [Array(results[0].dtype, (len(results), *results[0].shape))]
    return results


def _result_type(line: Instruction) -> Type:
    """What the operation yields; a start yields (operands, results, ...), but an older all-reduce-start the results."""
    if not line.opcode.endswith("-start") or isinstance(line.type, Array):
        return line.type
    holds_operands = line.opcode != "all-reduce-start" or isinstance(line.type[0], tuple)
    return line.type[1] if holds_operands else line.type


def _unscattered(array: Array, line: Instruction, group_size: int) -> Array:
    dimension = int(line.attribute("dimensions") or 0)
    shape = list(array.shape)
    shape[dimension] *= group_size
    return Array(array.dtype, tuple(shape))


def _wire_bytes(kind: str, n_bytes: int, group_size: int) -> int:
    if kind in ("collective-permute", "collective-broadcast"):
        return n_bytes
    return n_bytes * (group_size - 1) // group_size * (2 if kind == "all-reduce" else 1)


def link_traffic(collectives: Iterable[Collective]) -> LinkTraffic:
    """Divides what a compiled program sends, see `Cluster.wire`."""
    return divided(GroupTraffic(c.kind, c.wire_bytes * c.executions, c.group_size, c.per_node) for c in collectives)
