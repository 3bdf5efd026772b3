"""Axes that a function names in its own way, as those written for `jax.pmap` do, in the place of a mesh's."""

import math
from collections.abc import Callable, Collection, Sequence

import jax
from jax._src.core import extend_axis_env_nd

from jzero.base.types import PyTree
from jzero.errors import ModelError
from jzero.jaxpr.params import inner_jaxprs
from jzero.jaxpr.program import Equation, Program, evaluate, has_custom_rule, trace
from jzero.jaxpr.walk import every_equation, place_of, with_params

_NAMING = ("axes", "axis_name")
"""The parameters of collectives that name axes."""


def under_axis_names(fn: Callable, names: Collection[str], axes: Sequence[str]) -> Callable:
    """Lets a function call the axes of the mesh, all of them together, by other names.

    Args:
        fn: a function of arrays that runs inside `shard_map`.
        names: each stands for all of `axes`.
        axes: of the mesh.

    Returns:
        A function like `fn`.

    Example:
        >>> from jax.sharding import PartitionSpec as P
        >>> mean = under_axis_names(lambda x: jax.lax.pmean(x.sum(), "batch"), ["batch"], ["x"])
        >>> mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4])
        >>> mean = jax.shard_map(mean, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False)
        >>> float(mean(jax.numpy.arange(4.0)))
        1.5
    """

    def run(*args: PyTree) -> PyTree:
        long = [axis for axis in axes if jax.lax.axis_size(axis) > 1] or list(axes[-1:])
        size = math.prod(jax.lax.axis_size(axis) for axis in long)
        with extend_axis_env_nd([(name, size) for name in names]):
            program, out_shape = trace(fn, *args)
        _check(program, names, axes)
        outs = evaluate(with_params(program, lambda eqn: _renamed(eqn, names, long)), jax.tree.leaves(args))
        return jax.tree.structure(out_shape).unflatten(outs)

    return run


def _check(program: Program, names: Collection[str], axes: Sequence[str]) -> None:
    """Refuses names in functions whose derivatives are the user's own, which would name them once more, later."""
    for eqn, *_ in every_equation(program):
        inside = (inner for body in inner_jaxprs(eqn) for inner, *_ in every_equation(body))
        if has_custom_rule(eqn) and any(_mentions(inner, names) for inner in inside):
            raise ModelError(
                f"a function with a derivative of its own names an axis that `jax.pmap` would bind ({place_of(eqn)}); "
                f"write {tuple(axes)} there."
            )


def _renamed(eqn: Equation, names: Collection[str], axes: Sequence[str]) -> dict[str, object]:
    """The parameters of an equation that name axes, with those of the mesh."""
    changed: dict[str, object] = {}
    for param in _mentions(eqn, names):
        given = eqn.params[param]
        replaced = [axis for name in _tuple(given) for axis in (axes if name in names else (name,))]
        meant = list(dict.fromkeys(replaced))
        if not isinstance(given, tuple) and len(meant) > 1:
            raise ModelError(
                f"the loss asks for the index of a device along {given!r} ({place_of(eqn)}), which stands for the axes "
                f"{tuple(meant)} here; jzero.axis_index() is that index."
            )
        changed[param] = tuple(meant) if isinstance(given, tuple) else meant[0]
    return changed


def _mentions(eqn: Equation, names: Collection[str]) -> list[str]:
    """Which parameters of an equation hold some of the names."""
    return [param for param in _NAMING if any(name in names for name in _tuple(eqn.params.get(param)))]


def _tuple(names: object) -> tuple[object, ...]:
    return names if isinstance(names, tuple) else (names,)
