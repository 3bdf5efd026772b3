"""What a traced step computes, reads, writes and sends on one device: the closed form's part of a step's time.

Elementwise operations are fused into what reads their results, as XLA does. A value becomes an array, written once and
read where it is used, when a product, a collective or a loop needs it; a reduction reads what its operand is made of.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax.numpy as jnp

from jzero.jaxpr import (
    Equation,
    Program,
    Variable,
    called_program,
    every_equation,
    inner_jaxprs,
    interpret,
    name_of,
    scan_arity,
    subprogram,
)
from jzero.jaxpr.arithmetic import product_flops
from jzero.jaxpr.params import flash_attention_of, mesh_axes, rounds
from jzero.jaxpr.primitives import (
    COLLECTIVES,
    FLASH_ATTENTION,
    FLASH_ATTENTION_BACKWARD,
    FUSED,
    GATHER,
    INLINED,
    LOOPS,
    REDUCTIONS,
    RENAMES,
    SCATTERS,
    SHARD_MAP,
    SLICES,
    UPDATE_SLICE,
    is_scan,
)
from jzero.jaxpr.walk import only_equation
from jzero.plan.estimate.flat_program import value_of
from jzero.plan.hardware.kernel import Kernel, share_seen

_SMALL = 2**20
"""Bytes below which collectives of one kind in one block of code are sent together, as XLA combines them."""

_IN_PLACE = SCATTERS | {UPDATE_SLICE}
_HLO = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64", "int8": "s8"}


class Message(NamedTuple):
    """Collectives of one kind along the same mesh axes in one block of code.

    Attributes:
        kind: one of `jzero.plan.KINDS`.
        axes: of the mesh, longer than 1.
        n_bytes: that one device sends.
        launches: how many there are; small ones that nothing waits for are counted together.
        is_awaited: whether what comes next waits for each: small sums, such as those of batch normalisation.
    """

    kind: str
    axes: tuple[str, ...]
    n_bytes: int
    launches: int
    is_awaited: bool


@dataclass
class Block:
    """The body of a loop, or the code outside of all loops, run once.

    Attributes:
        times: how often it runs in a step.
        around: the number of the block around it; None for the outermost.
        kernels: in program order.
        messages: what is sent in it.
    """

    times: int
    around: int | None
    kernels: list[Kernel] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


@dataclass(frozen=True)
class Work:
    """What one device does in a step: loss and gradients in blocks, and the optimizer's update as one kernel."""

    blocks: tuple[Block, ...]
    update: Kernel = field(default_factory=Kernel)


def traced_work(program: Program, axis_sizes: Mapping[str, int]) -> Work:
    """Adds up what one device runs.

    Args:
        program: the jaxpr of what one device runs, inside of `shard_map`.
        axis_sizes: sizes of the mesh's axes.

    Returns:
        Its blocks. Loops whose length depends on data count as one round, of branches the longest.

    Example:
        >>> import jax
        >>> program = jax.make_jaxpr(lambda x, w: jax.nn.relu(x) @ w)(jnp.ones((4, 8)), jnp.ones((8, 8)))
        >>> [(kernel.flops, kernel.n_bytes) for kernel in traced_work(program, {}).blocks[0].kernels]
        [({}, 256), ({'f32': 512}, 512)]
    """
    return Work(tuple(_walked(program, axis_sizes, 1)))


def step_work(
    program: Program, axis_sizes: Mapping[str, int], *, state_bytes: int, param_bytes: int, share: float
) -> Work:
    """Adds up what one device runs in a training step.

    Args:
        program: the jaxpr of `jzero.zero.step.train_step`: loss and gradients in one `shard_map`, the update outside.
        axis_sizes: sizes of the mesh's axes.
        state_bytes: of this device's parameters and moments, which the update reads and writes.
        param_bytes: of the parameters alone, and so of the gradients that it reads.
        share: how much of the whole that is, and so of an update's matrix products.
    """
    inside = called_program(only_equation(program, SHARD_MAP))
    flops = {dtype: round(share * n) for dtype, n in products(program).items()}
    return replace(traced_work(inside, axis_sizes), update=Kernel(flops, 2 * state_bytes + param_bytes))


@dataclass(eq=False)
class _Value:
    """An array, or what is computed from arrays where it is read."""

    n_bytes: int
    is_array: bool = False
    sources: tuple["_Value", ...] = field(default=(), repr=False)

    def arrays(self) -> tuple["_Value", ...]:
        return (self,) if self.is_array else self.sources


def _array(v: Variable) -> _Value:
    return _Value(value_of(v.aval).n_bytes, is_array=True)


def _slice(n_bytes: int) -> _Value:
    """A part of an array, of which no more than that is read."""
    return _Value(n_bytes, sources=(_Value(n_bytes, is_array=True),))


def _walked(
    program: Program,
    axis_sizes: Mapping[str, int],
    times: int,
    *,
    first_slice: int | None = None,
    first_stacked: int | None = None,
) -> list[Block]:
    """The blocks of a program, of which the first is itself.

    Its inputs are arrays, and from a number on slices of arrays; its outputs become arrays, and from a number on are
    put into arrays, where elementwise operations write them without a copy.
    """
    walk = _Walk(axis_sizes, times)
    ins = [_array(v) for v in subprogram(program).jaxpr.invars]
    n_arrays = len(ins) if first_slice is None else first_slice
    outs = walk.inline(program, ins[:n_arrays] + [_slice(x.n_bytes) for x in ins[n_arrays:]])
    n_whole = len(outs) if first_stacked is None else first_stacked
    walk.run(2 * sum(x.n_bytes for x in outs[n_whole:] if x.is_array))
    for x in outs:
        walk.need(x)
    for (kind, axes, is_awaited), sizes in walk.sent.items():
        together = sum(size >= _SMALL for size in sizes) + any(size < _SMALL for size in sizes)
        launches = len(sizes) if is_awaited else together
        walk.blocks[0].messages.append(Message(kind, axes, sum(sizes), launches, is_awaited))
    return walk.blocks


class _Walk:
    """One block and those inside it."""

    def __init__(self, axis_sizes: Mapping[str, int], times: int):
        self.axis_sizes = axis_sizes
        self.blocks = [Block(times, None)]
        self.sent: dict[tuple[str, tuple[str, ...], bool], list[int]] = defaultdict(list)
        # What happened since the last product: arrays that were read or written, which fusions then share, and the axes
        # of small sums, which XLA combines.
        self.fresh: set[_Value] = set()
        self.summed: set[tuple[str, ...]] = set()

    def inline(self, program: Program, ins: list[_Value]) -> list[_Value]:
        return interpret(program, ins, self.step, literal=lambda _: _Value(0), constant=_array)

    def run(self, n_bytes: int, flops: Mapping[str, int] | None = None) -> None:
        if n_bytes:
            self.blocks[0].kernels.append(Kernel(flops or {}, n_bytes))

    def need(self, x: _Value) -> int:
        """Makes an array of a value that is read as one; returns its size."""
        if not x.is_array and x.sources:
            self.run(self.read(x.sources) + x.n_bytes)
            x.is_array, x.sources = True, ()
            self.fresh.add(x)
        return x.n_bytes

    def read(self, arrays: Iterable[_Value]) -> int:
        """Bytes of arrays that a fusion reads, without those that its neighbours read or wrote."""
        n_bytes = sum(array.n_bytes for array in arrays if array not in self.fresh)
        self.fresh.update(arrays)
        return n_bytes

    def step(self, eqn: Equation, ins: list[_Value]) -> list[_Value]:
        name, sizes = name_of(eqn), [value_of(v.aval).n_bytes for v in eqn.outvars]
        if name in INLINED:
            return self.inline(called_program(eqn), ins)
        if name in RENAMES:
            return ins[: len(sizes)]
        sources = tuple(dict.fromkeys(array for x in ins for array in x.arrays()))
        if name in SLICES:
            return [_slice(sizes[0])]
        if name in FUSED:
            return [_Value(n_bytes, sources=sources) for n_bytes in sizes]
        made = [_Value(n_bytes, is_array=True) for n_bytes in sizes]
        if name in REDUCTIONS:
            self.run(self.read(sources) + sum(sizes))
            return made
        read = sum(self.need(x) for x in ins)
        if name in LOOPS:
            self.loop(eqn)
        elif name == GATHER:
            self.run(2 * sum(sizes))
        elif name in _IN_PLACE:
            self.run(2 * ins[1 if name == UPDATE_SLICE else -1].n_bytes)
        elif name in COLLECTIVES:
            self.send(eqn)
        else:
            self.run(read + sum(sizes), _flops(eqn))
            self.fresh.clear()
            self.summed.clear()
        return made

    def send(self, eqn: Equation) -> None:
        (axes, n_bytes), kind = bytes_sent(eqn, self.axis_sizes), COLLECTIVES[name_of(eqn)]
        is_awaited = kind == "all-reduce" and n_bytes < _SMALL
        if is_awaited and axes in self.summed:
            self.sent[kind, axes, True][-1] += n_bytes
        elif n_bytes:
            self.sent[kind, axes, is_awaited].append(n_bytes)
            self.summed |= {axes} if is_awaited else set()

    def loop(self, eqn: Equation) -> None:
        times = self.blocks[0].times
        if is_scan(eqn):
            n_consts, n_carry = scan_arity(eqn)
            stacks = {"first_slice": n_consts + n_carry, "first_stacked": n_carry}
            bodies = [_walked(called_program(eqn), self.axis_sizes, times * rounds(eqn), **stacks)]
        else:
            bodies = [_walked(inner, self.axis_sizes, times) for inner in inner_jaxprs(eqn)]
        n = len(self.blocks)
        for block in max(bodies, key=lambda blocks: sum(_weight(block) for block in blocks)):
            block.around = 0 if block.around is None else block.around + n
            self.blocks.append(block)


def _weight(block: Block) -> int:
    """What tells the longest of several branches."""
    return block.times * sum(sum(kernel.flops.values()) + kernel.n_bytes for kernel in block.kernels)


def bytes_sent(eqn: Equation, axis_sizes: Mapping[str, int]) -> tuple[tuple[str, ...], int]:
    """The mesh axes longer than 1 of a collective, and how many bytes one device sends in it."""
    kind = COLLECTIVES[name_of(eqn)]
    axes = tuple(a for a in mesh_axes(eqn) if axis_sizes[a] > 1)
    group = math.prod(axis_sizes[a] for a in axes)
    share = (group - 1) / group if kind != "collective-permute" else 1
    payloads = (
        max(v.aval.size * v.aval.dtype.itemsize for v in pair) for pair in zip(eqn.invars, eqn.outvars, strict=True)
    )
    return axes, sum(round(payload * share * (2 if kind == "all-reduce" else 1)) for payload in payloads)


def products(program: Program) -> dict[str, int]:
    """Flops of all matrix products and convolutions of a jaxpr, by HLO dtype; loops counted, `shard_map` left out."""
    total: dict[str, int] = defaultdict(int)
    for eqn, times, _ in every_equation(program, closed=(SHARD_MAP,)):
        for dtype, flops in _flops(eqn).items():
            total[dtype] += times * flops
    return dict(total)


def _flops(eqn: Equation) -> dict[str, int]:
    """Flops of a product, a convolution or cuDNN's attention, by HLO dtype; of anything else none."""
    if not (flops := product_flops(eqn)):
        return {}
    left = eqn.invars[0].aval
    if name_of(eqn) in (FLASH_ATTENTION, FLASH_ATTENTION_BACKWARD):
        attention = flash_attention_of(eqn)
        n_keys = eqn.invars[1].aval.shape[attention.keys_dim]
        flops = round(flops * share_seen(n_keys, attention.is_causal, attention.window))
    return {_HLO.get(jnp.dtype(left.dtype).name, "f32"): flops}
