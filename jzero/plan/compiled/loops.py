"""How often things run, and how much they multiply: trip counts, executions of computations, matrix-product flops."""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Mapping

from jzero.plan.compiled.hlo import Instruction, Module


def executions(module: Module) -> Mapping[str, tuple[int, bool]]:
    """Counts how often each computation runs when the program runs once.

    Loops of unknown length count as one run of their body, and every branch of a conditional counts as taken.

    Args:
        module: a parsed program.

    Returns:
        Computation name -> (runs, whether every trip count on the way was known).
    """
    runs: Counter[str] = Counter({module.entry: 1})
    known = dict.fromkeys(module.computations, True)
    for name in _callers_first(module):
        for line in module.computations[name].instructions.values():
            trips = trip_count(module, name, line) if line.opcode == "while" else 1
            for callee in line.called:
                runs[callee] += runs[name] * (1 if trips is None else trips)
                known[callee] &= known[name] and trips is not None
    return {name: (runs[name], known[name]) for name in module.computations}


def innermost_loops(module: Module) -> Mapping[str, str | None]:
    """Finds the loop that each computation runs in.

    Args:
        module: a parsed program.

    Returns:
        Computation name -> name of the innermost loop's body, which is in its own loop; None outside of all loops. A
        computation with several callers belongs to the first.
    """
    loops: dict[str, str | None] = {module.entry: None}
    for name in _callers_first(module):
        for line in module.computations[name].instructions.values():
            body = (line.attribute("body") or "").lstrip("%") if line.opcode == "while" else loops[name]
            for callee in line.called:
                loops.setdefault(callee, body)
    return loops


def trip_count(module: Module, computation: str, loop: Instruction) -> int | None:
    """How often a while loop's body runs, or None where that depends on data.

    XLA notes it as `known_trip_count`; otherwise the condition is read, where it compares a counter that starts at a
    constant and grows by a constant with another constant.
    """
    noted = re.search(r'"known_trip_count":\s*\{"n":"(\d+)"', loop.attributes)
    if noted:
        return int(noted[1])
    condition, body = loop.attribute("condition"), loop.attribute("body")
    if condition is None or body is None:
        return None
    condition, body = condition.lstrip("%"), body.lstrip("%")
    direction, counter, limit = _compare(module, condition)
    if direction not in ("LT", "LE") or not isinstance(counter, _Counter) or not isinstance(limit, int):
        return None
    initial = module.computations[computation].instructions.get(loop.operands[0])
    final = module.computations[body].root
    if initial is None or initial.opcode != "tuple" or final.opcode != "tuple":
        return None
    start = _affine(module, computation, initial.operands[counter.index], ())
    next_value = _affine(module, body, final.operands[counter.index], ())
    if not isinstance(start, int) or not isinstance(next_value, _Counter) or next_value.index != counter.index:
        return None
    step = next_value.offset
    distance = limit - (start + counter.offset) + (direction == "LE")
    return max(0, math.ceil(distance / step)) if step > 0 else None


@dataclasses.dataclass(frozen=True)
class _Counter:
    """Element `index` of the loop's carried tuple, plus a constant."""

    index: int
    offset: int = 0


_Affine = _Counter | int | None


def _affine(module: Module, computation: str, name: str, arguments: tuple[_Affine, ...]) -> _Affine:
    """Evaluates an instruction that is a constant, a loop counter, or a sum of the two; None for anything else."""
    line = module.computations[computation].instructions.get(name)
    if line is None:
        return None
    if line.opcode == "constant":
        return int(line.literal) if re.fullmatch(r"-?\d+", line.literal) else None
    if line.opcode == "parameter":
        number = int(line.literal)
        return arguments[number] if number < len(arguments) else None
    if line.opcode == "get-tuple-element":
        source = module.computations[computation].instructions.get(line.operands[0])
        is_carried = source is not None and source.opcode == "parameter" and not arguments
        return _Counter(int(line.attribute("index") or 0)) if is_carried else None
    operands = tuple(_affine(module, computation, operand, arguments) for operand in line.operands)
    if line.opcode in ("copy", "convert", "bitcast"):
        return operands[0]
    if line.opcode in ("fusion", "call") and line.called:
        return _affine(module, line.called[0], module.computations[line.called[0]].root.name, operands)
    if line.opcode == "add":
        match operands:
            case (int(a), int(b)):
                return a + b
            case (_Counter(index, offset), int(constant)) | (int(constant), _Counter(index, offset)):
                return _Counter(index, offset + constant)
    return None


def _compare(module: Module, condition: str) -> tuple[str | None, _Affine, _Affine]:
    """The comparison a loop condition returns, as (direction, left, right), looking through one fusion or call."""
    root, computation, arguments = module.computations[condition].root, condition, ()
    if root.opcode in ("fusion", "call") and root.called:
        arguments = tuple(_affine(module, condition, operand, ()) for operand in root.operands)
        computation = root.called[0]
        root = module.computations[computation].root
    if root.opcode != "compare":
        return None, None, None
    left, right = (_affine(module, computation, operand, arguments) for operand in root.operands)
    return root.attribute("direction"), left, right


def _callers_first(module: Module) -> list[str]:
    callees_first: list[str] = []
    seen: set[str] = set()

    def visit(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        for line in module.computations[name].instructions.values():
            for callee in line.called:
                visit(callee)
        callees_first.append(name)

    visit(module.entry)
    return callees_first[::-1]
