"""Finds, in the jaxpr of a function, which dimensions of its parameters a `scan` walks over."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend.core import primitives

from jzero.jaxpr import compat

Dims = tuple[int | None, ...]
"""For each dimension of a value, the dimension of the parameter it came from."""


def scanned_dims(fn: Callable, params: Any, *args: Any) -> Mapping[int, frozenset[int]]:
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
    program, _ = compat.trace(fn, params, *args)
    found: dict[int, frozenset[int]] = {}
    leaves = jax.tree.leaves(params)
    origins = [(i, tuple(range(len(x.shape)))) for i, x in enumerate(leaves)]
    _walk(program, [*origins, *[None] * (len(program.jaxpr.invars) - len(leaves))], found)
    return found


def _walk(program: Any, origins: list[Any], found: dict[int, frozenset[int]]) -> list[Any]:
    jaxpr, _ = compat.subprogram(program)
    env: dict[Any, tuple[int, Dims]] = {v: o for v, o in zip(jaxpr.invars, origins, strict=True) if o}
    for eqn in jaxpr.eqns:
        inputs = [None if isinstance(v, jex_core.Literal) else env.get(v) for v in eqn.invars]
        if any(inputs):
            env.update({v: o for v, o in zip(eqn.outvars, _step(eqn, inputs, found), strict=True) if o})
    return [None if isinstance(v, jex_core.Literal) else env.get(v) for v in jaxpr.outvars]


def _step(eqn: Any, inputs: list[Any], found: dict[int, frozenset[int]]) -> list[Any]:
    nothing = [None] * len(eqn.outvars)
    if eqn.primitive is primitives.scan_p:
        n_consts, n_carry = compat.scan_arity(eqn)
        inside = list(inputs)
        for i in range(n_consts + n_carry, len(inputs)):
            if inputs[i]:
                leaf, dims = inputs[i]
                found[leaf] = found.get(leaf, frozenset()) | {d for d in dims[:1] if d is not None}
                inside[i] = (leaf, dims[1:])
        _walk(eqn.params["jaxpr"], inside, found)
        return nothing
    inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    if inner is not None and len(compat.subprogram(inner).jaxpr.invars) == len(inputs):
        return _walk(inner, inputs, found)
    if eqn.primitive.name in ("convert_element_type", "copy", "name"):
        return inputs
    if eqn.primitive is primitives.transpose_p:
        leaf, dims = inputs[0]
        return [(leaf, tuple(dims[d] for d in eqn.params["permutation"]))]
    return nothing
