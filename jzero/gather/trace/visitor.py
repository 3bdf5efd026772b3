"""Walks over a jaxpr of which some operands are deferred parameters, and asks a visitor what to do at each use of one.

Planning a program, running it and evaluating a part of it on gathered parameters are three visitors of one walk, so
that they cannot disagree about what a use is.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar, cast

from jzero.gather.unit.deferred import DeferredParam
from jzero.jaxpr import Equation, Program, called_program, interpret, scan_arity
from jzero.jaxpr.primitives import is_call, is_remat, is_scan

Data = TypeVar("Data")
"""What a visitor lets stand for data: arrays when it runs a program, something known of them when it plans one."""


class Visitor(Protocol[Data]):
    """What happens at the equations of a program; operands are `DeferredParam` or whatever the visitor lets data be."""

    def data(self, eqn: Equation, operands: list[Data]) -> list[Data]:
        """An equation without deferred operands."""
        ...

    def use(self, eqn: Equation, operands: list[Data | DeferredParam]) -> list[Data]:
        """An equation that needs the full value of its deferred operands."""
        ...

    def region(self, eqn: Equation, operands: list[Data | DeferredParam]) -> list[Data]:
        """A `jax.checkpoint` region with deferred operands."""
        ...

    def loop(
        self, eqn: Equation, operands: list[Data | DeferredParam], stacked: Mapping[int, DeferredParam]
    ) -> list[Data]:
        """A `scan` that walks over the deferred operands numbered `stacked`; it may have others."""
        ...

    def output(self, value: DeferredParam) -> Data:
        """A parameter that leaves the program as it is."""
        ...


def walk(program: Program, operands: Sequence[Data | DeferredParam], visitor: Visitor[Data]) -> list[Data]:
    """Evaluates a jaxpr, leaving to the visitor what has to do with parameters.

    Args:
        program: a jaxpr, closed or open, or a `Subprogram`.
        operands: one value per input, some of them `DeferredParam`.
        visitor: what to do.

    Returns:
        One value per output; none is `DeferredParam`.
    """
    return [visitor.output(x) if isinstance(x, DeferredParam) else x for x in _walk(program, operands, visitor)]


def _walk(
    program: Program, operands: Sequence[Data | DeferredParam], visitor: Visitor[Data]
) -> list[Data | DeferredParam]:
    return interpret(program, operands, lambda eqn, values: _visit(eqn, values, visitor))


def _visit(
    eqn: Equation, operands: list[Data | DeferredParam], visitor: Visitor[Data]
) -> Sequence[Data | DeferredParam]:
    deferred_params = [x for x in operands if isinstance(x, DeferredParam)]
    if not deferred_params:
        return visitor.data(eqn, cast(list[Data], operands))
    if is_call(eqn):
        return _walk(called_program(eqn), operands, visitor)
    if is_remat(eqn):
        return visitor.region(eqn, operands)
    if stacked := stacked_operands(eqn, operands):
        return visitor.loop(eqn, operands, stacked)
    if len(operands) == 1 and (followed := deferred_params[0].follow(eqn)):
        return [followed]
    return visitor.use(eqn, operands)


def stacked_operands(eqn: Equation, operands: Sequence[object]) -> dict[int, DeferredParam]:
    """The operands that a `scan` can slice as shards, by number; a rearranged stack is gathered before the loop."""
    if not is_scan(eqn):
        return {}
    first_x = sum(scan_arity(eqn))
    return {
        i: x
        for i, x in enumerate(operands)
        if i >= first_x and isinstance(x, DeferredParam) and not x.replay and x.placement.dim != 0
    }
