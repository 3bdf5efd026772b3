"""What is made of what in a compiled program: its arrays under all their names, and the operations that make them."""

from collections.abc import Iterator
from typing import NamedTuple

from jzero.plan.compiled.hlo import Array, Instruction, Module, Type, leaves
from jzero.plan.compiled.loops import innermost_loops

Place = tuple[str, tuple[int, ...]]
"""An array: the instruction that makes it, and where in its result it is."""

_SAME = frozenset({"bitcast", "copy", "optimization-barrier", "reshape", "transpose"})
_RENAMES = _SAME | {"parameter", "tuple", "get-tuple-element", "while"}


class Flow(NamedTuple):
    """Something made: by which instruction, which arrays, of which instructions' results, and how large they are."""

    line: Instruction
    results: frozenset[Place]
    operands: tuple[Instruction, ...]
    n_bytes: int


def places(line: Instruction) -> Iterator[Place]:
    """The arrays of an instruction's result, tuples of them included."""
    return ((line.name, path) for path in _paths(line.type))


def float_arrays(line: Instruction) -> list[Place]:
    """The arrays of a result that are more than a number, and no positions or masks."""
    found = zip(places(line), _types(line.type), strict=True)
    return [place for place, x in found if isinstance(x, Array) and x.shape and x.dtype.startswith(("f", "bf", "c"))]


def n_bytes(type_: Type) -> int:
    """Bytes of all arrays of a result."""
    return sum(array.n_bytes for array in leaves(type_))


class Dataflow:
    """The arrays of a program and how they come about; what happens inside of kernels is left out.

    Attributes:
        lines: the instructions that are no part of a kernel, by name.
        flows: what they make; of a fusion with several results, each on its own.
    """

    def __init__(self, module: Module):
        self._computations, ran = module.computations, innermost_loops(module)
        calls = [line for c in module.computations.values() for line in c.instructions.values() if line.called]
        kernels = {c for line in calls if line.opcode not in ("while", "conditional", "call") for c in line.called}
        outer = [c for name, c in module.computations.items() if name in ran and name not in kernels]
        self.lines = {line.name: line for computation in outer for line in computation.instructions.values()}
        self._parents: dict[Place, Place] = {}
        for line in self.lines.values():
            self._alias(line)
        makes = (i for i in self.lines.values() if i.opcode not in _RENAMES and not i.opcode.endswith("-done"))
        self.flows = [flow for line in makes for flow in self._flows(line)]

    def root(self, place: Place) -> Place:
        """The one name of an array that has several: loops and tuples hand it on."""
        path = []
        while (above := self._parents.get(place, place)) != place:
            path.append(place)
            place = above
        self._parents |= dict.fromkeys(path, place)
        return place

    def roots(self, line: Instruction) -> set[Place]:
        """The arrays of a result, by their one name."""
        return {self.root(place) for place in places(line)}

    def operands(self, line: Instruction) -> tuple[Instruction, ...]:
        """The instructions whose results an instruction reads."""
        return tuple(self.lines[name] for name in line.operands if name in self.lines)

    def with_kernel(self, line: Instruction) -> Iterator[Instruction]:
        """An instruction and, if it is a kernel or an asynchronous call, those in it."""
        yield line
        for name in line.called:
            if line.opcode not in ("while", "conditional", "call") and name in self._computations:
                yield from self._computations[name].instructions.values()

    def _flows(self, line: Instruction) -> Iterator[Flow]:
        is_fusion, result = line.opcode.removesuffix("-start") == "fusion", _result(line)
        made = line.type[result[0]] if result and not isinstance(line.type, Array) else line.type
        fused = self._computations.get(line.called[0]) if is_fusion and line.called else None
        if fused is None or fused.root.opcode != "tuple" or isinstance(made, Array):
            results = frozenset(self.root(place) for place in places(line) if place[1][: len(result)] == result)
            yield Flow(line, results, self.operands(line), n_bytes(made))
            return
        for i, (name, type_) in enumerate(zip(fused.root.operands, made, strict=True)):
            needed, read = [name], set()
            while needed:
                inner = fused.instructions[needed.pop()]
                if inner.name not in read:
                    read.add(inner.name)
                    needed += [o for o in inner.operands if o in fused.instructions]  # a constant's is its value
            numbers = {int(fused.instructions[n].literal) for n in read if fused.instructions[n].opcode == "parameter"}
            sources = tuple(self.lines[line.operands[n]] for n in sorted(numbers) if line.operands[n] in self.lines)
            yield Flow(line, frozenset({self.root((line.name, (*result, i)))}), sources, n_bytes(type_))

    def _union(self, place: Place, other: Place) -> None:
        if other[0] in self.lines:
            a, b = self.root(place), self.root(other)
            if a != b:
                self._parents[a] = b

    def _alias(self, line: Instruction) -> None:
        """Arrays that are one and the same under several names."""
        name, operands = line.name, line.operands
        if line.opcode == "get-tuple-element":
            index = int(line.attribute("index") or 0)
            for path in _paths(line.type):
                self._union((name, path), (operands[0], (index, *path)))
        elif line.opcode == "tuple":
            for path in _paths(line.type):
                if path:
                    self._union((name, path), (operands[path[0]], path[1:]))
        elif line.opcode.endswith("-done") and operands[0] in self.lines:
            result = _result(self.lines[operands[0]])
            for path in _paths(line.type):
                self._union((name, path), (operands[0], (*result, *path)))
        elif line.opcode.endswith("-start") and _result(line) == (1,) and not isinstance(line.type, Array):
            for i, operand in enumerate(operands):
                at = (0, i) if isinstance(line.type[0], tuple) else (0,)
                for path in _paths(self.lines[operand].type) if operand in self.lines else ():
                    self._union((name, (*at, *path)), (operand, path))
        elif line.opcode in _SAME and operands:
            for path in _paths(line.type):
                self._union((name, path), (operands[0], path))
        elif line.opcode == "while":
            body, condition = (
                self._computations[(line.attribute(key) or "").lstrip("%")] for key in ("body", "condition")
            )
            inputs = [i.name for c in (body, condition) for i in c.instructions.values() if i.opcode == "parameter"]
            for path in _paths(line.type):
                for other in (operands[0], body.root.name, *inputs):
                    self._union((name, path), (other, path))


def _result(line: Instruction) -> tuple[int, ...]:
    """Where in its type a start holds what its done returns; everything, for any other instruction."""
    if not line.opcode.endswith("-start") or isinstance(line.type, Array):
        return ()
    if line.opcode == "copy-start":  # copy, original, context
        return (0,)
    holds_operands = line.opcode != "all-reduce-start" or isinstance(line.type[0], tuple)
    return (1,) if holds_operands else ()


def _types(type_: Type) -> Iterator[Type]:
    yield type_
    if not isinstance(type_, Array):
        for element in type_:
            yield from _types(element)


def _paths(type_: Type, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    yield at
    if not isinstance(type_, Array):
        for i, element in enumerate(type_):
            yield from _paths(element, (*at, i))
