"""HLO text becomes data: computations, their instructions in schedule order, and the types of what they compute.

Covers what `compiled.as_text()` prints on the supported jax versions, for GPU and CPU programs. Nothing here knows what
a loop or a collective is: `jzero.plan.compiled.loops` and `jzero.plan.compiled.program` read them from this.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Array:
    """The type of one array: an HLO dtype name ("bf16", "f32", ...), its dimensions, and if it lies in host memory."""

    dtype: str
    shape: tuple[int, ...]
    on_host: bool = dataclasses.field(default=False, compare=False, repr=False)

    @property
    def n_bytes(self) -> int:
        """Bytes the array's elements take; tokens and opaque values take none."""
        return math.ceil(math.prod(self.shape) * _bits(self.dtype) / 8)


Type = Array | tuple["Type", ...]


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation."""

    name: str
    opcode: str
    type: Type
    operands: tuple[str, ...]
    literal: str  # what stood between the opcode's parentheses: a constant's value, a parameter's number
    attributes: str  # everything behind those parentheses

    def attribute(self, key: str) -> str | None:
        """Value of a plain attribute such as `index=1` or `direction=LT`, or the inside of a braced one."""
        found = re.search(rf"(?:^|, ){key}=(?:\{{([^{{}}]*)\}}|([^,\s{{}}]+))", self.attributes)
        return None if found is None else (found[1] if found[1] is not None else found[2])

    @functools.cached_property
    def op_name(self) -> str:
        """The JAX name stack the instruction came from, empty where XLA recorded none."""
        found = re.search(r'metadata=\{[^}]*?op_name="([^"]*)"', self.attributes)
        return found[1] if found else ""

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """Names of the computations this instruction runs."""
        names = []
        for found in _CALLED.finditer(self.attributes):
            names += re.findall(r"%?([\w.$<>-]+)", found[1] or found[2])
        return tuple(names)


@dataclasses.dataclass(frozen=True)
class Computation:
    """A function of the program: its instructions by name, in the order they were printed, and which one it returns."""

    instructions: Mapping[str, Instruction]
    root: Instruction


@dataclasses.dataclass(frozen=True)
class Module:
    """A parsed HLO module: its computations by name, the name of the entry, and the number of devices it runs on."""

    computations: Mapping[str, Computation]
    entry: str
    n_partitions: int


def parse_module(text: str) -> Module:
    r"""Reads the text of one HLO module.

    Args:
        text: what `compiled.as_text()` returns.

    Returns:
        The module; sections that are not computations (stack frames, file names) are passed over.

    Raises:
        ValueError: the text has no entry computation.

    Example:
        >>> module = parse_module('ENTRY %main (x: f32[4]) -> f32[4] {\n  ROOT %x = f32[4]{0} parameter(0)\n}')
        >>> module.computations[module.entry].root.type
        Array(dtype='f32', shape=(4,))
    """
    computations: dict[str, Computation] = {}
    entry, name = None, None
    lines: dict[str, Instruction] = {}
    root = None
    for text_line in text.splitlines():
        if name is None:
            header = _HEADER.match(text_line)
            if header:
                name, lines, root = header[2], {}, None
                entry = name if header[1] else entry
        elif text_line.startswith("}"):
            if lines:
                computations[name] = Computation(lines, root or next(reversed(lines.values())))
            name = None
        else:
            is_root, instruction = _parse_instruction(text_line)
            if instruction is not None:
                lines[instruction.name] = instruction
                root = instruction if is_root else root
    if entry not in computations:
        raise ValueError("The text holds no HLO module: no computation is marked ENTRY.")
    partitions = re.search(r"num_partitions=(\d+)", text.partition("\n")[0])
    return Module(computations, entry, int(partitions[1]) if partitions else 1)


def leaves(type_: Type) -> tuple[Array, ...]:
    """Flattens a type into its arrays, in order."""
    if isinstance(type_, Array):
        return (type_,)
    return tuple(array for element in type_ for array in leaves(element))


def parse_type(text: str) -> Type:
    """Reads an HLO type, arrays and nested tuples alike; of layouts only the memory is kept.

    Example:
        >>> parse_type("((bf16[8,4]{1,0:T(8,128)}, pred[]), f32[2]{0})")
        ((Array(dtype='bf16', shape=(8, 4)), Array(dtype='pred', shape=())), Array(dtype='f32', shape=(2,)))
    """
    text = text.strip()
    if text.startswith("("):
        return tuple(map(parse_type, _split_top_level(text[1 : _closing(text, 0)])))
    dtype, _, rest = text.partition("[")
    dimensions, _, layout = rest.replace("<=", "").partition("]")
    return Array(dtype.strip(), tuple(int(size) for size in dimensions.split(",") if size), _HOST in layout)


_HOST = "S(5)"  # XLA's number of the memory space that JAX calls pinned_host
_HEADER = re.compile(r"(ENTRY\s+)?%?([\w.$<>-]+)\s(?:\(.*\)\s*->.*)?\{\s*$")
_NAME = re.compile(r"\s*(ROOT\s+)?%?([\w.$<>-]+)\s*=\s*")
_CALLED = re.compile(
    r"(?:^|, )(?:calls|to_apply|body|condition|true_computation|false_computation|branch_computations"
    r"|called_computations)=(?:\{([^{}]*)\}|(%?[\w.$<>-]+))"
)


def _parse_instruction(line: str) -> tuple[bool, Instruction | None]:
    line = re.sub(r"/\*.*?\*/", "", line)
    found = _NAME.match(line)
    if not found:
        return False, None
    rest = line[found.end() :]
    type_end = _closing(rest, 0) + 1 if rest.startswith("(") else rest.find(" ")
    opcode, parenthesis, _ = rest[type_end:].partition("(")
    if not parenthesis:
        return False, None
    opening = type_end + len(opcode)
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    # Operands are printed as %name or, in the verbose form, as type %name.
    operands = tuple(part.split()[-1].lstrip("%") for part in _split_top_level(inside) if part.strip())
    attributes = rest[closing + 1 :].removeprefix(",").strip()
    instruction = Instruction(found[2], opcode.strip(), parse_type(rest[:type_end]), operands, inside, attributes)
    return bool(found[1]), instruction


def _closing(text: str, opening: int) -> int:
    """Position of the parenthesis that closes the one at `opening`; the end of the text where none does."""
    depth = 0
    for position in range(opening, len(text)):
        depth += (text[position] == "(") - (text[position] == ")")
        if depth == 0:
            return position
    return len(text)


def _split_top_level(text: str) -> list[str]:
    """Splits at the commas that stand outside of every bracket."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]] if text.strip() else []


def _bits(dtype: str) -> int:
    if dtype == "pred":
        return 8
    width = re.match(r"(?:bf|f|s|u|c)(\d+)", dtype)
    return int(width[1]) if width else 0
