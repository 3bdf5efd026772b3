"""Which results of a program may differ between devices that run it on different inputs."""

from collections.abc import Collection, Sequence

from jzero.jaxpr.params import called_program, mesh_axes, scan_arity, while_of
from jzero.jaxpr.primitives import ALL_GATHER, AXIS_INDEX, COND, INLINED, SCAN, SUMS, WHILE, name_of
from jzero.jaxpr.program import Equation, Program
from jzero.jaxpr.walk import interpret

_AGREED = SUMS | {"pmax", "pmin", ALL_GATHER}
"""Collectives that leave the same on every device along their axes."""


def may_differ(program: Program, inputs: Sequence[bool], axes: Collection[str]) -> list[bool]:
    """Follows what differs between devices through a program.

    Args:
        program: what each device runs, a jaxpr.
        inputs: for each input, whether it may differ.
        axes: the axes of the mesh along which the devices lie.

    Returns:
        For each output, whether it may differ; a sum, maximum or gather over all of the axes never does.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def step(count, x):
        ...     return count + 1, count + x.sum(), count + jax.lax.psum(x.sum(), "data")
        >>> program = jax.make_jaxpr(step, axis_env=[("data", 2)])(0.0, jnp.ones(3))
        >>> may_differ(program, [False, True], ["data"])
        [False, True, False]
    """

    def step(eqn: Equation, ins: list[bool]) -> list[bool]:
        name = name_of(eqn)
        inside = lambda inner, ins: may_differ(inner, ins, axes)
        if name in _AGREED and set(axes) <= set(mesh_axes(eqn)):
            return [False] * len(eqn.outvars)
        if name == AXIS_INDEX:
            return [bool(set(axes) & set(mesh_axes(eqn)))]
        if name in INLINED and called_program(eqn) is not None:
            return inside(called_program(eqn), ins)
        if name == SCAN:
            n_consts, n_carry = scan_arity(eqn)
            return _settled(lambda ins: inside(called_program(eqn), ins), ins, n_consts, n_carry)
        if name == WHILE:
            return _of_while(eqn, ins, axes)
        if name == COND:
            index, *operands = ins
            branches = [inside(branch, operands) for branch in eqn.params["branches"]]
            return [index or any(outs) for outs in zip(*branches, strict=True)]
        return [any(ins)] * len(eqn.outvars)

    return interpret(program, list(inputs), step, literal=lambda _: False, constant=lambda _: False)


def _settled(body, ins: list[bool], n_consts: int, n_carry: int) -> list[bool]:
    """Runs a loop's body until nothing more of what it carries comes to differ."""
    consts, carry, rest = ins[:n_consts], ins[n_consts : n_consts + n_carry], ins[n_consts + n_carry :]
    while True:
        outs = body([*consts, *carry, *rest])
        after = [a or b for a, b in zip(carry, outs, strict=False)]
        if after == carry:
            return [*carry, *outs[n_carry:]]
        carry = after


def _of_while(eqn: Equation, ins: list[bool], axes: Collection[str]) -> list[bool]:
    """A loop that runs for other lengths on other devices makes all that it carries differ."""
    body, condition, n_body, n_condition = while_of(eqn)
    of_condition, ins = ins[:n_condition], ins[n_condition:]
    carry = _settled(lambda ins: may_differ(body, ins, axes), ins, n_body, len(ins) - n_body)
    (length,) = may_differ(condition, [*of_condition, *carry], axes)
    return [length or c for c in carry]
