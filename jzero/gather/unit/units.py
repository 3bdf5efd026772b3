"""What one use of parameters is, and what it has to gather, hand on and keep in either pass."""

from dataclasses import dataclass, field

from jzero.gather.unit.deferred import DeferredParam
from jzero.gather.unit.split_vjp import SplitVJP


@dataclass(frozen=True)
class Unit:
    """A use of parameters.

    Attributes:
        name: of the primitive.
        gather_keys: what it gathers, in the order of first use.
        passed: leaves whose own arrays go in, to be sliced by a loop inside or because they are whole.
        split_vjp: its computation; the other operands are the passed arrays and then the data.
        offloads: whether the data through which gradients flow waits for the backward pass in host memory.
    """

    name: str
    gather_keys: tuple[DeferredParam, ...]
    passed: tuple[int, ...]
    split_vjp: SplitVJP
    offloads: bool = False

    def to_gather(self, *, backward: bool) -> tuple[DeferredParam, ...]:
        """What to gather in one pass: what is not gathered in advance, and in the backward pass only what it reads."""
        needs = zip(self.gather_keys, self.split_vjp.needs, strict=True)
        return tuple(f for f, needed in needs if not f.in_advance and (needed or not backward))


@dataclass(frozen=True)
class Orders:
    """What one unit gathers in one pass, and for whom.

    Attributes:
        gather: what it gathers: for itself or for later units.
        send: what it hands on, each with the number of the unit that gets it.
        receive: its own gather keys that were gathered before, each with the number of the unit that hands it on.
    """

    gather: tuple[DeferredParam, ...] = ()
    send: tuple[tuple[DeferredParam, int], ...] = ()
    receive: tuple[tuple[DeferredParam, int], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """The orders of one unit in both passes.

    Attributes:
        ahead: in the forward pass.
        back: in the backward pass.
        kept: gather keys that stay gathered between the two.
        scatters_first: whether its gradients are scattered before the backward pass goes on, since a loop comes next.
    """

    ahead: Orders
    back: Orders
    kept: frozenset[DeferredParam] = field(default=frozenset())
    scatters_first: bool = False


def on_its_own(unit: Unit) -> Schedule:
    """A unit that gathers for itself, without looking ahead."""
    return Schedule(Orders(gather=unit.to_gather(backward=False)), Orders(gather=unit.to_gather(backward=True)))


Link = tuple[DeferredParam, int, int]
"""A gathered parameter on its way: what, from which unit, to which."""
