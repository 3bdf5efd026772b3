"""Finds, in the jaxpr of a function, which dimensions of its parameters a `scan` walks over, and which come first."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import jax

from jzero.base.types import Params, PyTree
from jzero.jaxpr import Equation, Program, called_program, interpret, name_of, scan_arity, subprogram, trace
from jzero.jaxpr.params import permutation
from jzero.jaxpr.primitives import COPIES, TRANSPOSE, is_cast, is_scan, rearranges

Dims = tuple[int | None, ...]
"""For each dimension of a value, the dimension of the parameter it came from."""

Origin: TypeAlias = tuple[int, Dims] | None
"""Which parameter a value came from; None if it came from no parameter, or not by mere rearrangement."""


def scanned_dims(fn: Callable, params: Params, *args: PyTree) -> Mapping[int, frozenset[int]]:
    """Tells which dimensions of each parameter must not be divided over devices.

    Args:
        fn: `fn(params, *args)`.
        params: pytree of arrays or shapes.
        *args: further arguments, likewise.

    Returns:
        For the index of a leaf of `params`, in flattening order, the dimensions that some loop in `fn` scans.

    Example:
        >>> import jax.numpy as jnp
        >>> scan_layers = lambda w, x: jax.lax.scan(lambda x, w: (x @ w, None), x, w)[0]
        >>> dict(scanned_dims(scan_layers, jnp.ones((3, 4, 4)), jnp.ones((2, 4))))
        {0: frozenset({0})}
    """
    program, _ = trace(fn, params, *args)
    found: dict[int, frozenset[int]] = {}
    leaves = jax.tree.leaves(params)
    origins = [(i, tuple(range(len(x.shape)))) for i, x in enumerate(leaves)]
    _walk(program, [*origins, *[None] * (len(program.jaxpr.invars) - len(leaves))], found)
    return found


def first_uses(fn: Callable, params: Params, *args: PyTree) -> tuple[int, ...]:
    """Tells in which order a function first needs its parameters; casts and rearrangements are no uses.

    Args:
        fn: `fn(params, *args)`.
        params: pytree of arrays or shapes.
        *args: further arguments, likewise.

    Returns:
        The indices of all leaves of `params`, in flattening order; those that are never used come last.

    Example:
        >>> import jax.numpy as jnp
        >>> first_uses(lambda w, x: x @ w["b"].T @ w["a"], {"a": jnp.ones((2, 2)), "b": jnp.ones((2, 2))}, jnp.ones(2))
        (1, 0)
    """
    program, _ = trace(fn, params, *args)
    n_leaves = len(jax.tree.leaves(params))
    found: dict[int, None] = {}

    def step(eqn: Equation, inputs: list[int | None]) -> Sequence[int | None]:
        inner = called_program(eqn)
        if inner is not None and len(subprogram(inner).jaxpr.invars) == len(inputs):
            made = walk(inner, inputs)
            return made if len(made) == len(eqn.outvars) else [None] * len(eqn.outvars)
        if len(inputs) == 1 and (is_cast(eqn) or rearranges(eqn)):
            return inputs * len(eqn.outvars)
        found.update((leaf, None) for leaf in inputs if leaf is not None)
        return [None] * len(eqn.outvars)

    def walk(program: Program, inputs: Sequence[int | None]) -> list[int | None]:
        nothing = lambda _: None
        return interpret(program, inputs, step, literal=nothing, constant=nothing)

    walk(program, [*range(n_leaves), *[None] * (len(subprogram(program).jaxpr.invars) - n_leaves)])
    return (*found, *(i for i in range(n_leaves) if i not in found))


def _walk(program: Program, origins: Sequence[Origin], found: dict[int, frozenset[int]]) -> list[Origin]:
    nothing = lambda _: None
    return interpret(program, origins, lambda eqn, inputs: _step(eqn, inputs, found), literal=nothing, constant=nothing)


def _step(eqn: Equation, inputs: list[Origin], found: dict[int, frozenset[int]]) -> list[Origin]:
    nothing: list[Origin] = [None] * len(eqn.outvars)
    if not any(inputs):
        return nothing
    if is_scan(eqn):
        inside, first_x = list(inputs), sum(scan_arity(eqn))
        for i, origin in enumerate(inputs[first_x:], first_x):
            if origin:
                leaf, dims = origin
                found[leaf] = found.get(leaf, frozenset()) | {d for d in dims[:1] if d is not None}
                inside[i] = (leaf, dims[1:])
        _walk(called_program(eqn), inside, found)
        return nothing
    inner = called_program(eqn)
    if inner is not None and len(subprogram(inner).jaxpr.invars) == len(inputs):
        return _walk(inner, inputs, found)
    if is_cast(eqn) or name_of(eqn) in COPIES:
        return inputs
    if name_of(eqn) == TRANSPOSE and inputs[0]:
        leaf, dims = inputs[0]
        return [(leaf, tuple(dims[d] for d in permutation(eqn)))]
    return nothing
