"""The order in which XLA runs operations: on GPUs gradients are put off, on CPUs whatever could run stands in line."""

from collections import defaultdict, deque
from collections.abc import Iterator

from jzero.jaxpr.params import dot_of
from jzero.jaxpr.primitives import CONVOLUTION, DOT, LOOPS, SINKS, SUMS
from jzero.plan.estimate.flat_program import Op, Value

REORDERED = "reordered"
"""The name of an operation that copies a value into another order of dimensions."""

_PRODUCTS = frozenset({DOT, CONVOLUTION, "reduce_sum"})


def gradients_last(ops: list[Op]) -> list[Op]:
    """The order in which XLA's scheduler runs a program outside of loops: products that make gradients are put off.

    Nothing waits for such a product but the collective that sums the gradient, and nothing for that. So what the
    product reads stays until the end.
    """
    readers: dict[int, set[int]] = defaultdict(set)
    for i, op in enumerate(ops):
        for x in op.ins:
            readers[id(x)].add(i)
    put_off: set[int] = set()
    for i, op in reversed(list(enumerate(ops))):
        later = set().union(*(readers[id(x)] for x in op.outs))
        makes_gradient = later and later <= put_off and op.name not in LOOPS
        if op.name in SINKS or (makes_gradient and not any(ops[j].name in _PRODUCTS for j in later)):
            put_off.add(i)
    late: set[int] = set()
    for i, op in enumerate(ops):
        if i in put_off or any(id(x) in late for x in op.ins):
            put_off.add(i)
            late |= {id(x) for x in op.outs}
    return [op for i, op in enumerate(ops) if i not in put_off] + [op for i, op in enumerate(ops) if i in put_off]


def breadth_first(ops: list[Op], at_once: frozenset[str]) -> list[Op]:
    """The order in which XLA runs a program on CPUs: an operation stands in line from the moment that it could run.

    A small program may be run in another order, which takes less.

    Args:
        ops: operations in any order that could run.
        at_once: names of operations that stand in no line, since they run with what reads their result.
    """
    made_by = {id(x): i for i, op in enumerate(ops) for x in op.outs}
    waits_for = [{made_by[id(x)] for x in op.ins if id(x) in made_by} for op in ops]
    readers: dict[int, list[int]] = defaultdict(list)
    for i, before in enumerate(waits_for):
        for j in before:
            readers[j].append(i)
    order: list[int] = []
    line = deque(i for i, before in enumerate(waits_for) if not before)
    while line:
        order.append(i := line.popleft())
        for j in readers[i]:
            waits_for[j].discard(i)
            if not waits_for[j]:
                (line.appendleft if ops[j].name in at_once else line.append)(j)
    return [ops[i] for i in order]


def sums_together(ops: list[Op]) -> list[Op]:
    """The same operations with those sums over the mesh in one that need no other sum, as XLA combines them on CPUs."""
    after: set[int] = set()
    first: list[Op] = []
    for op in ops:
        is_after = any(id(x) in after for x in op.ins)
        if op.name in SUMS and not is_after:
            first.append(op)
        if op.name in SUMS or is_after:
            after |= {id(x) for x in op.outs}
    if not first:
        return ops
    together = Op(first[0].name, [x for op in first for x in op.ins], [x for op in first for x in op.outs])
    return [*(op for op in ops if op not in first), together]


def with_copies(ops: list[Op]) -> Iterator[Op]:
    """The same operations and the copies that CPUs need: of what a product reads in another order than it can.

    A matrix may be read transposed. More dimensions must lie as batch, free, contracted for the first operand, and as
    batch, contracted, free for the second.
    """
    copies: dict[tuple[int, tuple[int, ...]], Value] = {}
    for op in ops:
        for k, order in enumerate(_orders(op) if op.name == DOT else ()):
            if order is None:
                continue
            x, key = op.ins[k], (id(op.ins[k]), order)
            if key not in copies:
                copies[key] = Value(x.shape, x.n_bytes, x.on_host)
                yield Op(REORDERED, [x], [copies[key]])
            op.ins[k] = copies[key]
        yield op


def _orders(product: Op) -> Iterator[tuple[int, ...] | None]:
    """The order of dimensions that a product needs of each operand; None where it can do with what there is."""
    dot = dot_of(product.eqn)
    sides = ((dot.contract_left, dot.batch_left), (dot.contract_right, dot.batch_right))
    for is_second, ((summed, kept), v) in enumerate(zip(sides, product.eqn.invars, strict=True)):
        every = tuple(range(v.aval.ndim))
        free = tuple(d for d in every if d not in {*summed, *kept})
        order = (*kept, *summed, *free) if is_second else (*kept, *free, *summed)
        is_matrix = len(free) <= 1 and len(summed) <= 1 and tuple(kept) == every[: len(kept)]
        yield None if is_matrix or order == every else order
