"""The kernels of a compiled program: what the device runs for each of its instructions."""

from collections.abc import Mapping

from jzero.plan.compiled.flops import FlopCounter
from jzero.plan.compiled.hlo import Array, Computation, Instruction, Module, leaves
from jzero.plan.hardware.kernel import Kernel

_SLICES = ("dynamic-slice", "slice", "gather")
_RENAMES = ("bitcast", "reshape", "transpose", "copy", "convert")
_NO_KERNEL = frozenset({
    "parameter", "constant", "get-tuple-element", "tuple", "bitcast", "after-all", "add-dependency", "opt-barrier",
    "partition-id", "replica-id", "domain", "while", "conditional", "call",
})  # fmt: skip


class KernelReader:
    """The kernels of one module's computations."""

    def __init__(self, module: Module):
        """Keeps the module to look up operands and fused computations in."""
        self._module = module
        self._flops = FlopCounter(module)

    def kernel(self, computation: str, line: Instruction) -> Kernel | None:
        """What an instruction of a computation does when it runs once; None where the device runs nothing for it.

        Loops, branches and calls run nothing themselves. A start stands for its whole operation, a done for nothing.
        """
        opcode = line.opcode
        if opcode in _NO_KERNEL or opcode.endswith(("-done", "-update")):
            return None
        lines = self._module.computations[computation].instructions
        read = {True: 0, False: 0}
        written = {True: 0, False: 0}
        inside = self._module.computations[line.called[0]] if line.called and "fusion" in opcode else None
        for number, name in enumerate(line.operands):
            for array in leaves(lines[name].type) if name in lines else ():
                read[array.on_host] += self._read(inside, number, line, array)
        for array, n_bytes in self._written(inside, line, lines):
            written[array.on_host] += n_bytes
        flops = self._flops.by_dtype(computation, line)
        return Kernel(dict(flops), read[False] + written[False], read[True], written[True])

    def _read(self, inside: Computation | None, number: int, line: Instruction, array: Array) -> int:
        """Bytes of an operand that are read: where only a slice of it is used, that."""
        if inside is None:
            if number == 0 and line.opcode in _SLICES:
                return leaves(line.type)[0].n_bytes
            return 0 if number == 0 and line.opcode == "dynamic-update-slice" else array.n_bytes
        parameter = next(
            (p for p in inside.instructions.values() if p.opcode == "parameter" and p.literal == str(number)), None
        )
        return array.n_bytes if parameter is None else min(array.n_bytes, _used(inside, parameter.name, array.n_bytes))

    def _written(
        self, inside: Computation | None, line: Instruction, lines: Mapping[str, Instruction]
    ) -> list[tuple[Array, int]]:
        """The arrays an instruction yields, and how much of each is written: of an update in place, the update."""
        if line.opcode == "copy-start":  # yields (result, operand, context)
            return [(array, array.n_bytes) for array in leaves(line.type)[:1]]
        result = line.type if not line.opcode.endswith("-start") or isinstance(line.type, Array) else line.type[1]
        arrays = leaves(result)
        if inside is None:
            if line.opcode == "dynamic-update-slice" and line.operands[1] in lines:
                return [(array, sum(a.n_bytes for a in leaves(lines[line.operands[1]].type))) for array in arrays]
            if line.opcode == "custom-call" and len(arrays) > 1:
                arrays = arrays[:1]  # the others are its workspace
            return [(array, array.n_bytes) for array in arrays]
        roots = [inside.root.name] if inside.root.opcode != "tuple" else list(inside.root.operands)
        if len(roots) != len(arrays):
            return [(array, array.n_bytes) for array in arrays]
        return [(array, _update(inside, root, array.n_bytes)) for array, root in zip(arrays, roots, strict=True)]


def _used(inside: Computation, name: str, whole: int) -> int:
    """Bytes that a fusion reads of one of its values, at most the whole."""
    total = 0
    for line in inside.instructions.values():
        if name not in line.operands:
            continue
        if line.opcode in _SLICES and line.operands[0] == name:
            total += sum(array.n_bytes for array in leaves(line.type))
        elif line.opcode == "dynamic-update-slice" and line.operands[0] == name:
            total += 0  # all but the update stays where it is
        elif line.opcode in _RENAMES:
            total += _used(inside, line.name, whole) if line is not inside.root else whole
        else:
            return whole
    return min(total, whole)


def _update(inside: Computation, name: str, whole: int) -> int:
    """Bytes that a fusion writes of one of its results."""
    line = inside.instructions[name]
    while line.opcode in ("bitcast", "reshape", "copy") and line.operands[0] in inside.instructions:
        line = inside.instructions[line.operands[0]]
    if line.opcode != "dynamic-update-slice":
        return whole
    return min(whole, sum(array.n_bytes for array in leaves(inside.instructions[line.operands[1]].type)))
