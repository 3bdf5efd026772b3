"""How much memory a compiled program takes at each moment of its schedule, and whose it is.

The compiler writes down where each array lies and from when to when. What is alive at a moment is the union of these
places, since arrays share them; the most of it is `jzero.plan.Memory.peak` but for a few hundred bytes.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jzero.errors import JzeroError
from jzero.plan.compiled.dataflow import Place
from jzero.plan.compiled.hlo import Module
from jzero.plan.compiled.owners import argument_part, array_owners, is_argument, readable
from jzero.plan.memory_use import PARTS, Holder, MemoryUse, Phase

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+), (.*?):?$")
_VALUE = re.compile(
    r"^ value: <\d+ ([^\s{]+)(?:\{([\d,]*)\})?(?: \(phi\))? @\d+> \(size=(\d+),offset=(\d+)\): (\(?\w+(?:\[[\d,]*\])?)"
)
_MOMENT = re.compile(r"^    (\d+):(\S+)$", re.M)
_ALIVE = re.compile(r"^    ([^\s{]+)\{([\d,]*)\}:(\d+)-(\d+)$", re.M)
_COLOURED = re.compile(r"\bcolor (\d+)")
_RANK = {part: i + 1 for i, part in enumerate(("rest", "activations", "gathered_weights", "gradients"))}
_ROWS = 256  # pieces of memory that are looked at together, which bounds what that takes


class _Array(NamedTuple):
    """An array of an allocation: what it is, and where in it that lies."""

    place: Place
    size: int
    offset: int
    shape: str


class _Allocation(NamedTuple):
    size: int
    description: str
    arrays: list[_Array]


class _Value(NamedTuple):
    """An array that shares memory with others: whose it is, from where to where it lies, and from when to when."""

    part: str
    name: str
    shape: str
    low: int
    high: int
    first: int
    last: int


def read_memory_use(folder: Path, module: Module) -> MemoryUse:
    """Reads what the compiler wrote down with `xla_dump_to`.

    Args:
        folder: where it wrote, for this one program.
        module: the program.

    Raises:
        JzeroError: the compiler wrote nothing of the kind.
    """
    written = [
        path.read_text()
        for what in ("live-range", "buffer-assignment")
        for path in folder.glob(f"*_gpu_after_optimizations-{what}.txt")
    ]
    if len(written) != 2:
        raise JzeroError(
            "The compiler did not write down its buffers, which it does only for GPUs; memory over time is not known."
        )
    live, buffers = written
    order, _, ranges = live.partition("BufferLiveRange:")
    moments = {found[2]: int(found[1]) for found in _MOMENT.finditer(order)}
    alive = {(found[1], _path(found[2])): (int(found[3]), int(found[4])) for found in _ALIVE.finditer(ranges)}
    n_moments = max((last for _, last in alive.values()), default=0) + 1
    allocated, shared = 0, list[_Array]()
    entry = module.computations[module.entry].instructions
    arguments = {line.literal: line for line in entry.values() if is_argument(line)}
    lasting: Counter[str] = Counter()
    n_lasting: Counter[str] = Counter()
    for size, what, arrays in _allocations(buffers):
        if "thread-local" in what or _on_host(what):
            continue
        allocated += size
        if "preallocated-temp" in what:
            shared += arrays
            continue
        number = re.search(r"parameter (\d+)", what)
        part = argument_part(arguments[number[1]]) if number else "rest"
        lasting[part] += size
        n_lasting[part] += 1
    owner = array_owners(module)
    op_names = {i.name: i.op_name for c in module.computations.values() for i in c.instructions.values()}
    values = [
        _Value(owner.get(place, "rest"), op_names.get(place[0], ""), shape, offset, offset + size, *alive[place])
        for place, size, offset, shape in shared
        if size and place in alive
    ]
    use = _union(values, n_moments)
    for part, n_bytes in lasting.items():
        use[part] += n_bytes
    at = int(np.sum(list(use.values()), axis=0).argmax())
    holders = [Holder(part, "", "", n_lasting[part], n_bytes) for part, n_bytes in lasting.items()]
    holders += _holders([v for v in values if v.first <= at <= v.last])
    holders.sort(key=lambda holder: holder.n_bytes, reverse=True)
    return MemoryUse(use, tuple(holders), _phases(moments, op_names), allocated)


def _path(text: str | None) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


def _on_host(what: str) -> bool:
    colour = _COLOURED.search(what)
    return colour is not None and colour[1] == "5"  # as XLA numbers host memory


def _allocations(text: str) -> Iterator[_Allocation]:
    """What the compiler sets aside, piece by piece."""
    for block in re.split(r"^(?=allocation )", text.partition("\n\n")[0], flags=re.M)[1:]:
        lines = block.splitlines()
        found = _ALLOCATION.match(lines[0])
        assert found is not None, lines[0]
        arrays = [
            _Array((value[1], _path(value[2])), int(value[3]), int(value[4]), value[5])
            for value in map(_VALUE.match, lines[1:])
            if value
        ]
        yield _Allocation(int(found[1]), found[2], arrays)


def _union(values: list[_Value], n_moments: int) -> dict[str, np.ndarray]:
    """Bytes by part; of several arrays in one place the one that says most about it counts."""
    use = {part: np.zeros(n_moments, np.int64) for part in PARTS}
    edges = np.unique([edge for value in values for edge in (value.low, value.high)])
    sizes = np.diff(edges)
    for first in range(0, len(sizes), _ROWS):
        low, high = edges[first], edges[min(first + _ROWS, len(sizes))]
        here = np.zeros((min(_ROWS, len(sizes) - first), n_moments), np.int8)
        for value in values:
            if value.low < high and value.high > low:
                rows = slice(*np.searchsorted(edges, [max(value.low, low), min(value.high, high)]) - first)
                window = here[rows, value.first : value.last + 1]
                np.maximum(window, _RANK[value.part], out=window)
        for part, rank in _RANK.items():
            use[part] += sizes[first : first + _ROWS] @ (here == rank)
    return use


def _holders(values: list[_Value]) -> Iterator[Holder]:
    """Groups arrays that are alive together; of those in the same place, one counts."""
    groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    taken: list[_Value] = []
    for value in sorted(values, key=lambda v: (v.low - v.high, -_RANK[v.part], -len(v.name))):
        if not any(other.low <= value.low and value.high <= other.high for other in taken):
            taken.append(value)
            groups[value.part, readable(value.name), value.shape].append(value.high - value.low)
    return (Holder(*key, len(sizes), sum(sizes)) for key, sizes in groups.items())


def _phases(moments: Mapping[str, int], op_names: Mapping[str, str]) -> tuple[Phase, ...]:
    """Where the passes begin: where the fewest operations stand in the wrong one."""
    passes = [_pass(op_names.get(name, "")) for name in sorted(moments, key=moments.__getitem__)]
    found = [Phase("forward", 0)]
    for number, name in enumerate(("backward", "update"), start=1):
        if number in passes:
            known = np.array([-1 if p is None else p for p in passes])
            too_late = np.cumsum((known >= 0) & (known < number))  # earlier passes' operations up to here
            too_early = np.cumsum(known >= number)
            found.append(Phase(name, int((too_early - too_late).argmin()) + 1))
    return tuple(found)


def _pass(op_name: str) -> int | None:
    """0, 1 and 2 for what belongs to the forward pass, the backward pass and the update."""
    if "transpose(" in op_name:
        return 1
    if "jvp(" in op_name:
        return 0
    return 2 if op_name.startswith("jit(") and "/shard_map" not in op_name else None
