"""Which results of a program may differ between devices that run it on different inputs."""

from collections.abc import Collection, Sequence

from jzero.jaxpr.facts import follow
from jzero.jaxpr.params import mesh_axes
from jzero.jaxpr.primitives import ALL_GATHER, AXIS_INDEX, SUMS, name_of
from jzero.jaxpr.program import Equation, Program

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

    def step(eqn: Equation, _: list[bool]) -> list[bool] | None:
        if name_of(eqn) in _AGREED and set(axes) <= set(mesh_axes(eqn)):
            return [False] * len(eqn.outvars)
        if name_of(eqn) == AXIS_INDEX:
            return [bool(set(axes) & set(mesh_axes(eqn)))]
        return None

    return follow(program, list(inputs), any, step)
