"""How much memory a program takes at once, from its jaxpr alone: the arrays that its operations keep alive.

Not every value becomes an array. XLA fuses elementwise operations into whatever reads their result, so that the arrays
they came from are kept instead. One is made where an operation needs it (a product, a collective, a loop), and where a
value that is read several times is smaller than what it came from. The rules were found by comparing with the buffers
of compiled programs; `tests/plan/estimate/test_closed_form.py` holds them to what XLA does today.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from jzero.jaxpr import Program, called_program, inner_jaxprs, scan_arity, subprogram
from jzero.jaxpr.primitives import (
    ALL_GATHER,
    BARRIER,
    BROADCAST,
    CHEAP,
    FUSED,
    LOOPS,
    REDUCE_SCATTER,
    REDUCTIONS,
    RENAMES,
    SCAN,
    SCATTERS,
    SINKS,
    SUMS,
    UPDATE_SLICE,
)
from jzero.plan.estimate.flat_program import Op, Value, flatten
from jzero.plan.estimate.order import REORDERED, breadth_first, gradients_last, sums_together, with_copies

WEIGHTS, GRADIENTS, ACTIVATIONS, CONSTANTS = "gathered weights", "gradients", "activations", "constants of loops"
_PARAMETERS = "parameters"

_REPEATED = CHEAP - {BROADCAST}
"""Those cheap operations that CPUs run once for each reader; of the others they keep the result."""
_UPDATES = SCATTERS | {UPDATE_SLICE}
_IN_PLACE = SUMS | {SCAN, "while"} | _UPDATES


class Peak(NamedTuple):
    """The most that is alive at once.

    Attributes:
        n_bytes: by owner, on the device; arguments are not counted.
        host_bytes: the most in host memory.
        over_time: by owner, on the device, at each operation; a loop's own operations stand once where it runs.
    """

    n_bytes: Counter[str]
    host_bytes: int
    over_time: Mapping[str, np.ndarray]


@dataclass(eq=False)
class _Buffer:
    """An array: its size, when it is made and last read, whose it is, and which it may overwrite."""

    n_bytes: int
    start: int
    owner: str
    end: int
    on_host: bool = False
    over: frozenset["_Buffer"] = frozenset()


class _Source(NamedTuple):
    """Where a value is: the array that it is, or else the arrays from which it is computed where it is read."""

    arrays: frozenset[_Buffer] = frozenset()
    is_array: bool = False
    is_constant: bool = False  # made of numbers alone
    is_cheap: bool = False
    scatter: int | None = None  # what it was scattered by, as long as no barrier stands in between


class _Loop(NamedTuple):
    """What a loop's body tells the program around it.

    Attributes:
        peak: the most that one iteration takes.
        constants: shapes of constants that the compiler moves out of it, and whether they are one number.
        gradients: numbers of the inputs whose gradients it scatters.
        owners: whose each output is.
    """

    peak: Peak
    constants: list[tuple[str, int, bool]]
    gradients: set[int]
    owners: list[str]


def peak(program: Program, is_parameter: Sequence[bool], *, overlap: bool, on_cpu: bool = False) -> Peak:
    """Finds the most memory that a program takes beside its arguments.

    Args:
        program: the jaxpr of what one device runs.
        is_parameter: for each input, whether it is a parameter.
        overlap: whether loops gather for the next iteration and scatter in it, see `jzero.jaxpr.overlap_options`.
        on_cpu: whether it runs on CPUs, where XLA orders and fuses otherwise and keeps no barriers.

    Returns:
        Bytes by owner.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> program = jax.make_jaxpr(lambda w, x: jnp.tanh(x @ w) @ w)(jnp.ones((8, 8)), jnp.ones((4, 8)))
        >>> dict(peak(program, [True, False], overlap=False).n_bytes)  # x @ w and its tanh, which a product reads
        {'activations': 256}
    """
    owners = [_PARAMETERS if p else ACTIVATIONS for p in is_parameter]
    return _Simulation(program, owners, overlap and not on_cpu, on_cpu).run().peak


class _Simulation:
    def __init__(self, program: Program, owners: Sequence[str], overlap: bool, on_cpu: bool, *, in_loop: bool = False):
        self.inputs, ops, self.outputs = flatten(program)
        if on_cpu:
            self.ops = breadth_first(sums_together(list(with_copies(ops))), RENAMES | FUSED)
        else:
            self.ops = ops if in_loop else gradients_last(ops)
        self.overlap, self.on_cpu, self.in_loop = overlap, on_cpu, in_loop
        self.arguments = [_Buffer(0, -1, owner, -1) for owner in owners]
        self.sources = {
            id(x): _Source(frozenset([buffer]), is_array=True)
            for x, buffer in zip(self.inputs, self.arguments, strict=True)
        }
        self.carried: set[_Buffer] = set()  # what a loop hands from one iteration to the next
        self.buffers: list[_Buffer] = []
        self.inner: dict[int, Peak] = {}
        self.gradients: set[_Buffer] = set()
        self.pipelined: dict[int, int] = {}  # scatters whose results nothing holds back, and what each carries over
        self.hoisted: dict[int, tuple[str, int, bool]] = {}
        self.constants: dict[tuple[str, int], _Buffer] = {}
        self.stacks: dict[str, int] = {}

    def run(self) -> _Loop:
        for now, op in enumerate(self.ops):
            self._step(op, now)
        end = len(self.ops)
        for x in self.outputs:
            self._need(x, end)
            for buffer in self._source(x).arrays:
                buffer.end = end + 1
                buffer.n_bytes *= not (self.in_loop and buffer.on_host)  # a part of the stack outside
        for buffer in self.gradients:
            buffer.owner = GRADIENTS if buffer.owner == ACTIVATIONS else buffer.owner
        if self.in_loop and self.overlap:
            self.buffers += [_Buffer(n_bytes, 0, GRADIENTS, end) for n_bytes in self.pipelined.values()]
        gradients = {i for i, buffer in enumerate(self.arguments) if buffer in self.gradients}
        owners = [_owner(self._source(x).arrays) for x in self.outputs]
        return _Loop(self._peak(end), list(self.hoisted.values()), gradients, owners)

    def _source(self, x: Value) -> _Source:
        return self.sources.get(id(x), _Source(is_constant=True))  # whatever nothing made is a number

    def _make(self, x: Value, now: int, owner: str, over: Iterable[_Buffer] = ()) -> _Buffer:
        buffer = _Buffer(x.n_bytes, now, owner, now, x.on_host, frozenset(over))
        self.buffers.append(buffer)
        self.sources[id(x)] = _Source(frozenset([buffer]), is_array=True)
        return buffer

    def _read(self, arrays: Iterable[_Buffer], now: int) -> None:
        for buffer in arrays:
            buffer.end = max(buffer.end, now)

    def _need(self, x: Value, now: int) -> None:
        """Something reads a value that must be an array."""
        source = self._source(x)
        self._read(source.arrays, now)
        if source.is_array or source.is_constant:
            return
        n_bytes = sum(buffer.n_bytes for buffer in source.arrays)
        if not (source.is_cheap and 0 < n_bytes <= 1.1 * x.n_bytes):  # a bias may come with the one array
            self._make(x, now, _owner(source.arrays), source.arrays)

    def _step(self, op: Op, now: int) -> None:
        if op.name in RENAMES:
            self._rename(op)
        elif op.name in REDUCTIONS or op.name == REORDERED:
            for x in op.ins:
                self._read(self._source(x).arrays, now)
            for x in op.outs:
                self._make(x, now, ACTIVATIONS)
        elif op.name in FUSED:
            self._fuse(op, now)
        else:
            self._execute(op, now)

    def _rename(self, op: Op) -> None:
        for x, y in zip(op.ins, op.outs, strict=False):
            source = self._source(x)
            if op.name == BARRIER and source.scatter is not None:
                self.pipelined.pop(source.scatter, None)
                source = source._replace(scatter=None)
            self.sources[id(y)] = source

    def _fuse(self, op: Op, now: int) -> None:
        """An operation that runs where its result is read."""
        sources = [self._source(x) for x in op.ins]
        arrays = frozenset().union(*(s.arrays for s in sources))
        is_constant = all(s.is_constant for s in sources)
        fused = _Source(
            arrays,
            is_constant=is_constant,
            is_cheap=op.name in CHEAP and all(not s.arrays or s.is_array or s.is_cheap for s in sources),
            scatter=next((s.scatter for s in sources if s.scatter is not None), None),
        )
        if not is_constant and self.in_loop:
            self.hoisted |= {
                id(x): (x.shape, x.n_bytes, x.literal is not None)
                for x, s in zip(op.ins, sources, strict=True)
                if s.is_constant and (self.overlap or x.literal is None)
            }
        for x in op.outs:
            self.sources[id(x)] = fused
            is_kept = self.on_cpu and op.name not in _REPEATED and not is_constant
            if x.users > 1 and (is_kept or sum(buffer.n_bytes for buffer in arrays) > x.n_bytes):
                self._read(arrays, now)
                self._make(x, now, _owner(arrays), arrays)

    def _execute(self, op: Op, now: int) -> None:
        came_from = frozenset().union(*(self._source(x).arrays for x in op.ins))
        for x in op.ins:
            self._need(x, now)
        arrays = frozenset().union(*(self._source(x).arrays for x in op.ins))
        updated = self._source(op.ins[0]).arrays if op.name in _UPDATES else None
        if updated and updated <= self.carried:
            self.sources[id(op.outs[0])] = self._source(op.ins[0])  # in the place that it has outside of the loop
            return
        over = arrays if op.name in _IN_PLACE and not (self.on_cpu and op.name in SINKS) else ()
        made = [self._make(x, now, WEIGHTS if op.name == ALL_GATHER else ACTIVATIONS, over) for x in op.outs]
        if self.on_cpu and op.name.startswith("scatter") and self._source(op.ins[0]).is_constant:
            made[0].start = 0  # numbers wait for nothing, and are there from the start
        if self.on_cpu and op.name == "select_and_scatter_add":  # places are compared by number
            n_bytes = 5 * sum(x.n_bytes for x in op.ins)
            self.inner[now] = Peak(Counter({ACTIVATIONS: n_bytes}), 0, {ACTIVATIONS: np.array([n_bytes])})
        if op.name in SINKS:
            self.gradients |= {*came_from, *arrays, *made}
        if op.name == REDUCE_SCATTER:
            self.pipelined[now] = op.ins[0].n_bytes
            self.sources[id(op.outs[0])] = self._source(op.outs[0])._replace(scatter=now)
        if op.name in LOOPS:
            self._loop(op, made, now)

    def _loop(self, op: Op, made: list[_Buffer], now: int) -> None:
        owners = [_owner(self._source(x).arrays) for x in op.ins]
        if op.name != SCAN:
            # Of a branch, the costlier one; it and the body of a `while` have few inputs that are worth a name.
            bodies = [_inside(program, self.overlap, self.on_cpu) for program in inner_jaxprs(op.eqn)]
            self.inner[now] = max((b.peak for b in bodies), key=lambda p: p.n_bytes.total())
            return
        owners = [_PARAMETERS if owner == WEIGHTS else owner for owner in owners]
        (n_consts, n_carry), inside = scan_arity(op.eqn), called_program(op.eqn)
        simulation = _Simulation(inside, owners, self.overlap, self.on_cpu, in_loop=True)
        simulation.carried = set(simulation.arguments[n_consts : n_consts + n_carry])
        body = simulation.run()
        self.inner[now] = body.peak
        self.gradients |= {buffer for i in body.gradients for buffer in self._source(op.ins[i]).arrays}
        for buffer, owner in zip(made, body.owners, strict=True):
            buffer.owner = owner if owner == WEIGHTS else buffer.owner  # layers gathered one by one
        for x, buffer in zip(op.outs[n_carry:], made[n_carry:], strict=True):
            # One operation fills the stacks of equal shape of all loops, the moment that the first one needs it.
            buffer.start = 0 if self.on_cpu else self.stacks.setdefault(x.shape, now)
        given = {id(x): x for x in op.ins[:n_consts] if self._source(x).is_constant}.values()
        seen: Counter[str] = Counter()
        for shape, n_bytes, is_number in [*body.constants, *((x.shape, x.n_bytes, False) for x in given)]:
            key = (shape, seen[shape])
            seen[shape] += 1
            if key not in self.constants and not is_number:
                self.constants[key] = _Buffer(n_bytes, now, CONSTANTS, now)
                self.buffers.append(self.constants[key])
            if key in self.constants:
                self.constants[key].end = now

    def _peak(self, end: int) -> Peak:
        for buffer in self.buffers:
            for old in buffer.over:
                if old.end == buffer.start > old.start and old.n_bytes == buffer.n_bytes:
                    old.end -= 1  # overwritten
                    break
        changes: dict[tuple[str, bool], np.ndarray] = defaultdict(lambda: np.zeros(end + 3, np.int64))
        for buffer in self.buffers:
            changes[buffer.owner, buffer.on_host][buffer.start] += buffer.n_bytes
            changes[buffer.owner, buffer.on_host][buffer.end + 1] -= buffer.n_bytes
        host = sum((c.cumsum() for (_, on_host), c in changes.items() if on_host), np.zeros(end + 3, np.int64))
        lengths = np.ones(end + 3, np.int64)
        for at, inside in self.inner.items():
            host[at] += inside.host_bytes
            lengths[at] = max(map(len, inside.over_time.values()), default=1)
        starts = lengths.cumsum() - lengths
        live: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(lengths.sum(), np.int64))
        live |= {owner: np.repeat(c.cumsum(), lengths) for (owner, on_host), c in changes.items() if not on_host}
        for at, inside in self.inner.items():
            for owner, n_bytes in inside.over_time.items():
                live[owner][starts[at] : starts[at] + len(n_bytes)] += n_bytes
        at = int(np.sum([*live.values(), np.zeros(lengths.sum())], axis=0).argmax())
        return Peak(Counter({owner: int(c[at]) for owner, c in live.items() if c[at]}), int(host.max()), dict(live))


def _inside(program: Program, overlap: bool, on_cpu: bool) -> _Loop:
    n_inputs = len(subprogram(program).jaxpr.invars)
    return _Simulation(program, [ACTIVATIONS] * n_inputs, overlap, on_cpu, in_loop=True).run()


def _owner(arrays: Iterable[_Buffer]) -> str:
    """Whose a value is that comes from some arrays: what is made of parameters alone stands for them."""
    owners = {buffer.owner for buffer in arrays}
    return WEIGHTS if owners and owners <= {_PARAMETERS, WEIGHTS} else ACTIVATIONS
