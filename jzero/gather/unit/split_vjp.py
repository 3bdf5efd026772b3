"""Splits a function of gathered parameters into a forward and a backward half that share no gathered parameter.

JAX keeps whatever the gradient needs. Of that, what follows from the parameters alone, the parameters themselves
included, is left behind and made again from parameters gathered again; the rest is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

import jax
import jax.numpy as jnp

from jzero.base.types import TreeDef
from jzero.jaxpr import Equation, Program, called_program, evaluate, interpret, name_of, restrict, trace
from jzero.jaxpr.primitives import JIT, REPLAYABLE, is_cast
from jzero.jaxpr.program import ShapedArray

Shape: TypeAlias = jax.ShapeDtypeStruct | ShapedArray
"""Shape and dtype of an array, for tracing."""

Function: TypeAlias = Callable[[Sequence[jax.Array], Sequence[jax.Array]], list[jax.Array]]
"""Of gathered parameters and other operands."""

Pull: TypeAlias = Callable[[list[jax.Array]], Sequence[jax.Array]]
"""What JAX makes of a function for its backward pass: cotangents of the outputs -> those of the operands."""


def is_inexact(x: object) -> bool:
    """Whether a value can carry a gradient."""
    return jnp.issubdtype(jnp.result_type(x), jnp.inexact)


class Operands(NamedTuple):
    """What a function takes.

    Attributes:
        full: shape of each gathered parameter.
        trainable: which of them get a gradient.
        others: shape of each other operand.
        moving: which of them may get one.
    """

    full: Sequence[Shape]
    trainable: Sequence[bool]
    others: Sequence[Shape]
    moving: Sequence[bool]


@dataclass(frozen=True)
class SplitVJP:
    """The two halves.

    Attributes:
        forward: `(full, others) -> (outputs, kept)`.
        backward: `(full, kept, cotangents of the inexact outputs) -> (grads of moving_full, grads of moving_others)`.
        needs: for each gathered parameter, whether the backward half reads it.
        out_shapes: shape and dtype of each output.
        moving_full, moving_others: the operands that get a gradient.
        recomputes: whether the backward half runs the function again, from operands it must not share with the forward
            one.
    """

    forward: Callable[[Sequence[jax.Array], Sequence[jax.Array]], tuple[list[jax.Array], list[jax.Array]]]
    backward: Callable[
        [Sequence[jax.Array | None], Sequence[jax.Array], Sequence[jax.Array]], tuple[list[jax.Array], list[jax.Array]]
    ]
    needs: tuple[bool, ...]
    out_shapes: tuple[Shape, ...]
    moving_full: tuple[int, ...]
    moving_others: tuple[int, ...]
    recomputes: bool


def saving_vjp(fn: Function, operands: Operands, *, recomputes: bool, n_gathered: int | None = None) -> SplitVJP:
    """The halves that JAX's own differentiation of `fn` gives.

    Args:
        fn: the function; a `jax.checkpoint` with a policy may be inside.
        operands: what it takes.
        recomputes: see `SplitVJP`.
        n_gathered: how many of `operands.full` are gathered parameters, if not all. The others are values that the
            backward half is given again; what merely rearranges them is not kept either.
    """
    movers = _Movers(fn, operands)
    n_full, n_others = len(operands.full), len(operands.others)
    structure: list[TreeDef] = []

    def traced(full: Sequence[jax.Array], others: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        outs, pull = movers.vjp(full, others)
        residuals, treedef = jax.tree.flatten(pull)
        structure[:] = [treedef]
        return outs, residuals

    program, out_shape = trace(traced, list(operands.full), list(operands.others))
    outs = tuple(out_shape[0])
    n_gathered = n_full if n_gathered is None else n_gathered
    sources = [_GATHERED] * n_gathered + [_AT_HAND] * (n_full - n_gathered) + [_UNKNOWN] * n_others
    again = [source is not _UNKNOWN for source in _sources(program, sources)[len(outs) :]]
    remade, needs = restrict(program, [False] * len(outs) + again)
    n_again = sum(again)

    def forward(full, others):
        results = evaluate(program, [*full, *others])
        return results[: len(outs)], [r for r, a in zip(results[len(outs) :], again, strict=True) if not a]

    def backward(full, kept, cotangents):
        inputs = [x for x, used in zip([*full, *[None] * n_others], needs, strict=True) if used]
        made = iter(evaluate(remade, cast(list[jax.Array], inputs)) if n_again else [])
        kept = iter(kept)
        residuals = [next(made) if a else next(kept) for a in again]
        return movers.pull(structure[0].unflatten(residuals), cotangents)

    return SplitVJP(forward, backward, tuple(needs[:n_full]), outs, movers.full, movers.others, recomputes)


def recomputing_vjp(fn: Function, operands: Operands, out_shapes: Sequence[Shape]) -> SplitVJP:
    """The halves of full rematerialisation: the operands are kept and `fn` runs again."""
    fn = jax.jit(fn)  # units with one structural key share its trace, and that of its gradient
    movers = _Movers(fn, operands)

    @jax.jit
    def backward(full, kept, cotangents):
        return movers.pull(movers.vjp(full, kept)[1], cotangents)

    return SplitVJP(
        lambda full, others: (fn(full, others), list(others)),
        backward,
        (True,) * len(operands.full),
        tuple(out_shapes),
        movers.full,
        movers.others,
        recomputes=True,
    )


class _Movers:
    """`fn` as a function of those operands alone that get a gradient."""

    def __init__(self, fn: Function, operands: Operands):
        self.fn = fn
        self.full = _moving(operands.full, operands.trainable)
        self.others = _moving(operands.others, operands.moving)

    def vjp(self, full: Sequence[jax.Array], others: Sequence[jax.Array]) -> tuple[list[jax.Array], Pull]:
        """All outputs, and the VJP of the inexact ones."""

        def of_movers(*moving: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
            all_full, all_others, values = list(full), list(others), iter(moving)
            for i in self.full:
                all_full[i] = next(values)
            for i in self.others:
                all_others[i] = next(values)
            outs = self.fn(all_full, all_others)
            return [y for y in outs if is_inexact(y)], outs

        _, pull, outs = jax.vjp(
            of_movers, *[full[i] for i in self.full], *[others[i] for i in self.others], has_aux=True
        )
        return outs, pull

    def pull(self, pull: Pull, cotangents: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        """Gradients of the moving parameters and of the moving operands."""
        grads = pull(list(cotangents))
        return list(grads[: len(self.full)]), list(grads[len(self.full) :])


_UNKNOWN, _AT_HAND, _GATHERED = range(3)
"""What a value follows from: data too, a rearranged value that is at hand, or gathered parameters alone."""


def _sources(program: Program, inputs: Sequence[int]) -> list[int]:
    """For each output of a jaxpr, what it follows from."""
    gathered = lambda _: _GATHERED
    return interpret(program, inputs, _source, literal=gathered, constant=gathered)


def _source(eqn: Equation, operands: Sequence[int]) -> list[int]:
    if name_of(eqn) == JIT:
        return _sources(called_program(eqn), operands)
    source = min(operands, default=_GATHERED)
    usable = not eqn.effects and (source is not _AT_HAND or name_of(eqn) in REPLAYABLE or is_cast(eqn))
    return [source if usable else _UNKNOWN] * len(eqn.outvars)


def _moving(shapes: Sequence[Shape], wanted: Sequence[bool]) -> tuple[int, ...]:
    return tuple(i for i, (x, w) in enumerate(zip(shapes, wanted, strict=True)) if w and is_inexact(x))
