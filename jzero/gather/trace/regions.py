"""`activation_checkpointing.cpu_checkpointing`: rematerialised blocks keep their inputs in host memory.

A block is whatever the model marks, with `jax.checkpoint` or a Flax transform that stands for it: an equation in the
jaxpr of the loss. Its policy is exchanged there; `jzero.gather.unit.units` does what the new one says.
"""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend.core import primitives

from jzero.jaxpr import compat
from jzero.jaxpr.policies import OFFLOAD


def inputs_on_host(apply: Callable) -> Callable:
    """Turns `apply` of a `jzero.flax.model.Model` into one that keeps block inputs in host memory.

    Blocks that keep more than their inputs, by a policy, stay as they are. Where no block is marked a `UserWarning`
    says how to mark some.
    """

    def apply_offloaded(params: Any, model_state: Any, batch: Any, key: Any, train: bool) -> Any:
        args = (params, model_state, batch, key)
        program, out_shape = compat.trace(lambda *args: apply(*args, train), *args)
        if train and not any(remat_regions(program)):
            warnings.warn(
                "activation_checkpointing.cpu_checkpointing has no effect: the model recomputes nothing; mark its "
                "blocks with its own option, with jzero.remat, or in the configuration with "
                '"jzero": {"remat": {"modules": ["Block"]}}.',
                stacklevel=2,
            )
        outs = compat.run(_offloaded(program), jax.tree.leaves(args))
        return jax.tree.structure(out_shape).unflatten(outs)

    return apply_offloaded


def remat_regions(program: Any) -> Iterator[Any]:
    """Every `jax.checkpoint` region in a program, however deep inside."""
    for eqn in compat.subprogram(program).jaxpr.eqns:
        if eqn.primitive is primitives.remat_p:
            yield eqn
        for inner in compat.inner_jaxprs(eqn):
            yield from remat_regions(inner)


def _offloaded(program: Any) -> Any:
    """The same program with other policies."""
    if isinstance(program, jex_core.Jaxpr):  # from JAX 0.12 on, a closed one too
        return program.replace(eqns=[_with_policy(eqn) for eqn in program.eqns])
    return type(program)(_offloaded(program.jaxpr), program.consts)


def _with_policy(eqn: Any) -> Any:
    kinds = (jex_core.Jaxpr, jex_core.ClosedJaxpr)
    inside = lambda value: _offloaded(value) if isinstance(value, kinds) else value
    params = {
        name: tuple(map(inside, value)) if type(value) is tuple else inside(value)  # a named one holds no programs
        for name, value in eqn.params.items()
    }
    if eqn.primitive is primitives.remat_p and eqn.params["policy"] in (None, jax.checkpoint_policies.nothing_saveable):
        params["policy"] = OFFLOAD
    return eqn.replace(params=params)
