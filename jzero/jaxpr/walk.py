"""Goes over the equations of a jaxpr: one after another, with those inside of them, or with values of any kind."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple, TypeVar, cast

import jax
from jax.extend import core as jex_core
from jax.extend import source_info_util

from jzero.jaxpr.params import inner_jaxprs, is_program, rounds
from jzero.jaxpr.primitives import name_of
from jzero.jaxpr.program import Equation, Jaxpr, Program, Subprogram, Variable, bind, subprogram

AnyProgram = TypeVar("AnyProgram", bound=Program)

Value = TypeVar("Value")
"""What stands in a program for an array: the array, or whatever is to be known of it."""


def equations(program: Program) -> Sequence[Equation]:
    """The equations of a jaxpr, not those inside of them."""
    return subprogram(program).jaxpr.eqns


class Visited(NamedTuple):
    """An equation somewhere in a program.

    Attributes:
        eqn: the equation.
        times: how often it runs; loops whose length depends on data count as one round.
        scope: the names it was traced under. Inside a loop they start anew, so that those around it come first.
    """

    eqn: Equation
    times: int
    scope: str


def every_equation(
    program: Program, *, closed: Collection[str] = (), times: int = 1, scope: str = ""
) -> Iterator[Visited]:
    """Every equation of a jaxpr, however deep inside.

    Args:
        program: a jaxpr, closed or open, or a `Subprogram`.
        closed: names of primitives that are not looked into.
        times: how often the program itself runs.
        scope: the names around it.

    Example:
        >>> import jax
        >>> program = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c * 2, None), x, None, 3)[0])(1.0)
        >>> [(name_of(eqn), times) for eqn, times, _ in every_equation(program)]
        [('scan', 1), ('mul', 3)]
    """
    for eqn in equations(program):
        named = f"{scope}/{eqn.source_info.name_stack}"
        yield Visited(eqn, times, named)
        if name_of(eqn) not in closed:
            for inner in inner_jaxprs(eqn):
                yield from every_equation(inner, closed=closed, times=times * rounds(eqn), scope=named)


def place_of(eqn: Equation) -> str:
    """The line of Python that an equation comes from, as "file:line (function)"; empty for one from no file."""
    return source_info_util.summarize(eqn.source_info)


def only_equation(program: Program, name: str) -> Equation:
    """The first equation of a primitive, not inside of another one."""
    return next(eqn for eqn in equations(program) if name_of(eqn) == name)


def interpret(
    program: Program,
    operands: Sequence[Value],
    step: Callable[[Equation, list[Value]], Sequence[Value]],
    *,
    literal: Callable[[jex_core.Literal], Value] = lambda v: v.val,
    constant: Callable[[Variable], Value] | None = None,
) -> list[Value]:
    """Evaluates a jaxpr with values of any kind.

    Args:
        program: a jaxpr, closed or open, or a `Subprogram`.
        operands: one value per input.
        step: what an equation makes of the values that it reads: one for each of its outputs.
        literal: the value of a literal, which has an `aval` and a `val`.
        constant: the value of a constant by its variable; without, what the program has there.

    Returns:
        One value per output.
    """
    jaxpr, consts = subprogram(program)
    given = cast(Sequence[Value], consts) if constant is None else [constant(v) for v in jaxpr.constvars]
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*given, *operands], strict=True))
    read = lambda v: literal(v) if isinstance(v, jex_core.Literal) else values[v]
    for eqn in jaxpr.eqns:
        values.update(zip(eqn.outvars, step(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def run_replacing(
    program: Subprogram, operands: Sequence[jax.Array], keep: Callable[[jax.Array, jax.Array], jax.Array]
) -> list[jax.Array]:
    """Runs a program whose outputs replace its first operands, and has `keep` choose as soon as there is a new value.

    What goes on from a new value then goes on from the one that was chosen.

    Args:
        program: a jaxpr and its constants.
        operands: one value per input; the first of them are the old values.
        keep: `(new, old) -> chosen`. It is asked once for each output that is not the old value itself.

    Returns:
        What was chosen for each output.
    """
    jaxpr = program.jaxpr
    is_literal = lambda v: isinstance(v, jex_core.Literal)
    outputs = list(zip(jaxpr.outvars, operands, strict=False))
    times_put_out = Counter(v for v, _ in outputs if not is_literal(v))
    made = {v for eqn in jaxpr.eqns for v in eqn.outvars}
    # A value that is put out twice replaces two old ones, so that it cannot be either of them before the end.
    early = {v: old for v, old in outputs if not is_literal(v) and v in made and times_put_out[v] == 1}

    def step(eqn: Equation, values: list[jax.Array]) -> list[jax.Array]:
        results = zip(eqn.outvars, bind(eqn, values), strict=True)
        return [keep(new, early[v]) if v in early else new for v, new in results]

    results = zip(outputs, interpret(program, operands, step), strict=False)
    return [x if x is old or (not is_literal(v) and v in early) else keep(x, old) for (v, old), x in results]


def with_params(program: AnyProgram, change: Callable[[Equation], dict[str, object]]) -> AnyProgram:
    """The same program with other parameters of equations, however deep inside.

    Args:
        program: a jaxpr, closed or open, or a `Subprogram`.
        change: the parameters of an equation that get another value.
    """
    if not isinstance(program, jex_core.Jaxpr):  # from JAX 0.12 on, a closed one is one too
        jaxpr, consts = subprogram(program)
        make = cast(Callable[[Jaxpr, Sequence[jax.Array]], AnyProgram], type(program))
        return make(with_params(jaxpr, change), consts)
    inside = lambda value: with_params(value, change) if is_program(value) else value

    def changed(eqn: Equation) -> Equation:
        params = {
            name: tuple(map(inside, value)) if type(value) is tuple else inside(value)  # a named one holds no programs
            for name, value in eqn.params.items()
        }
        return eqn.replace(params=params | change(eqn))

    jaxpr = cast(Jaxpr, program)
    return cast(AnyProgram, jaxpr.replace(eqns=[changed(eqn) for eqn in jaxpr.eqns]))
