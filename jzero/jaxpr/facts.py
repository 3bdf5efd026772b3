"""Follows what is known of a program's inputs to its outputs, through calls, branches and loops of any length."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from jzero.jaxpr.params import branches_of, called_program, scan_arity, while_of
from jzero.jaxpr.primitives import COND, INLINED, SCAN, WHILE, name_of
from jzero.jaxpr.program import Equation, Program
from jzero.jaxpr.walk import interpret

Fact = TypeVar("Fact")
"""What is known of an array. There are finitely many, and joining them never loses one."""


def follow(
    program: Program,
    inputs: Sequence[Fact],
    join: Callable[[Sequence[Fact]], Fact],
    step: Callable[[Equation, list[Fact]], list[Fact] | None] = lambda eqn, ins: None,
) -> list[Fact]:
    """Follows facts through a program until they settle.

    Args:
        program: a jaxpr.
        inputs: what is known of each input.
        join: what is known of a value that depends on others; `join([])` is what is known of a constant.
        step: what an operation makes of the facts of its operands, one for each of its outputs, where that is not what
            `join` makes of them all; else None. It is asked again in each round of a loop that has not settled, and not
            asked of calls, branches and loops.

    Returns:
        What is known of each output.

    Example:
        >>> import jax
        >>> program = jax.make_jaxpr(lambda x, y, z: jax.lax.fori_loop(0, 3, lambda i, c: c * y, x))(1.0, 2.0, 3.0)
        >>> follow(program, [{"x"}, {"y"}, {"z"}], lambda facts: set().union(*facts)) == [{"x", "y"}]
        True
    """

    def through(eqn: Equation, ins: list[Fact]) -> list[Fact]:
        name = name_of(eqn)
        inside: Callable[[Program, list[Fact]], list[Fact]] = lambda inner, ins: follow(inner, ins, join, step)
        if name in INLINED and called_program(eqn) is not None:
            return inside(called_program(eqn), ins)
        if name == SCAN:
            n_consts, n_carry = scan_arity(eqn)
            return settled(lambda ins: inside(called_program(eqn), ins), ins, n_consts, n_carry, join)
        if name == WHILE:
            body, condition, n_body, n_condition = while_of(eqn)
            of_condition, ins = ins[:n_condition], ins[n_condition:]
            carry = settled(lambda ins: inside(body, ins), ins, n_body, len(ins) - n_body, join)
            (length,) = inside(condition, [*of_condition, *carry])
            return [join([length, c]) for c in carry]
        if name == COND:
            index, *operands = ins
            branches = [inside(branch, operands) for branch in branches_of(eqn)]
            return [join([index, *outs]) for outs in zip(*branches, strict=True)]
        found = step(eqn, ins)
        return [join(ins)] * len(eqn.outvars) if found is None else found

    nothing = lambda _: join([])
    return interpret(program, list(inputs), through, literal=nothing, constant=nothing)


def settled(
    body: Callable[[list[Fact]], list[Fact]],
    ins: list[Fact],
    n_consts: int,
    n_carry: int,
    join: Callable[[Sequence[Fact]], Fact],
) -> list[Fact]:
    """Runs a loop's body until nothing new is known of what it carries.

    Args:
        body: facts of its inputs -> facts of its outputs, those that it carries first.
        ins: what is known before the first round: constants, what is carried, the rest.
        n_consts: inputs that stay the same.
        n_carry: inputs that the first outputs replace.
        join: see `follow`.

    Returns:
        What is known of what it carries, in any round, and of its other outputs.
    """
    consts, carry, rest = ins[:n_consts], ins[n_consts : n_consts + n_carry], ins[n_consts + n_carry :]
    while True:
        outs = body([*consts, *carry, *rest])
        after = [join([a, b]) for a, b in zip(carry, outs, strict=False)]
        if after == carry:
            return [*carry, *outs[n_carry:]]
        carry = after
