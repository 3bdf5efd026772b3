"""A jaxpr as a list of operations on values, as XLA sees it: calls inlined, constants folded, duplicates merged.

Loops and branches stay one operation each.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jzero.jaxpr import Equation, Program, called_program, interpret, name_of, subprogram
from jzero.jaxpr.params import params_text, recomputes_behind_barrier
from jzero.jaxpr.primitives import BARRIER, INLINED, NEVER_MERGED, OF_ONE_LITERAL
from jzero.jaxpr.program import ShapedArray


@dataclass(eq=False)
class Value:
    """What a variable holds.

    Attributes:
        shape: shape and dtype.
        n_bytes: its size.
        on_host: whether it lies in host memory.
        literal: the number that fills it, if it is one number.
        users: how many operations read it.
    """

    shape: str
    n_bytes: int
    on_host: bool = False
    literal: bool | int | float | complex | None = None
    users: int = 0


@dataclass(eq=False)
class Op:
    """An operation: the name of its primitive, what it reads and makes, and its equation, if it has one."""

    name: str
    ins: list[Value]
    outs: list[Value]
    eqn: Any = field(repr=False, default=None)


def value_of(aval: Any) -> Value:
    """The value of an abstract array; what is no array, such as a token, has no bytes."""
    return Value(*_described(aval))


@functools.lru_cache(maxsize=4096)
def _described(aval: Any) -> tuple[str, int, bool]:
    shape = getattr(aval, "shape", None)
    if shape is None:
        return str(aval), 0, False
    is_key = jnp.issubdtype(aval.dtype, jax.dtypes.prng_key)
    n_bytes = math.prod(shape) * (8 if is_key else jnp.dtype(aval.dtype).itemsize)
    on_host = getattr(aval, "memory_space", None) == jax.memory.Space.Host
    return f"{aval.dtype}{tuple(shape)}", n_bytes, on_host


def flatten(program: Program) -> tuple[list[Value], list[Op], list[Value]]:
    """Lists the operations of a jaxpr.

    Args:
        program: a jaxpr, closed or open, or a `Subprogram`.

    Returns:
        Its inputs, its operations in program order, and its outputs.

    Example:
        >>> program = jax.make_jaxpr(jax.jit(lambda x: jax.nn.relu(x) @ x))(jnp.ones((2, 2)))
        >>> [op.name for op in flatten(program)[1]]
        ['max', 'dot_general']
    """
    flattener = _Flattener()
    inputs = [value_of(v.aval) for v in subprogram(program).jaxpr.invars]
    outputs = flattener.walk(program, inputs)
    return inputs, flattener.ops, outputs


class _Flattener:
    def __init__(self):
        self.ops: list[Op] = []
        self.literals: dict[tuple[str, bytes], Value] = {}
        self.made: dict[tuple[str, tuple[int, ...], str], list[Value]] = {}
        self.params: dict[int, str] = {}

    def walk(self, program: Program, inputs: list[Value]) -> list[Value]:
        literal = lambda v: self._literal(v.aval, v.val)
        return interpret(program, inputs, self._step, literal=literal, constant=lambda v: value_of(v.aval))

    def _step(self, eqn: Equation, ins: list[Value]) -> list[Value]:
        name = name_of(eqn)
        if name in INLINED:
            if recomputes_behind_barrier(eqn):  # it shows only in the HLO
                ins = self._add(BARRIER, ins, [value_of(v.aval) for v in eqn.invars], eqn)
            return self.walk(called_program(eqn), ins)
        if name in OF_ONE_LITERAL and ins[0].literal is not None:
            aval = eqn.outvars[0].aval
            return [self._literal(aval, np.asarray(ins[0].literal).astype(aval.dtype).item())]
        if name in NEVER_MERGED:
            return self._add(name, ins, [value_of(v.aval) for v in eqn.outvars], eqn)
        if id(eqn) not in self.params:  # equations of calls come by once for each
            self.params[id(eqn)] = params_text(eqn)
        key = (name, tuple(map(id, ins)), self.params[id(eqn)])
        if key not in self.made:
            self.made[key] = self._add(name, ins, [value_of(v.aval) for v in eqn.outvars], eqn)
        return self.made[key]

    def _add(self, name: str, ins: list[Value], outs: list[Value], eqn: Equation) -> list[Value]:
        for x in ins:
            x.users += 1
        self.ops.append(Op(name, ins, outs, eqn))
        return outs

    def _literal(self, aval: ShapedArray, number: bool | int | float | complex) -> Value:
        value = value_of(aval)
        value.literal = number
        return self.literals.setdefault((value.shape, np.asarray(number).astype(aval.dtype).tobytes()), value)
