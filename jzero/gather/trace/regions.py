"""`activation_checkpointing.cpu_checkpointing`: rematerialised blocks keep their inputs in host memory.

A block is whatever the model marks, with `jax.checkpoint` or a Flax transform that stands for it: an equation in the
jaxpr of the loss. Its policy is exchanged there; `jzero.gather.unit.run` does what the new one says.
"""

import warnings
from collections.abc import Callable, Iterator

import jax

from jzero.base.types import Batch, ModelState, Params, PyTree
from jzero.jaxpr import Equation, Program, evaluate, every_equation, trace
from jzero.jaxpr.params import remat_of
from jzero.jaxpr.policies import OFFLOAD
from jzero.jaxpr.primitives import is_remat
from jzero.jaxpr.walk import with_params


def inputs_on_host(apply: Callable) -> Callable:
    """Turns `apply(params, model_state, batch, key, train)` of a model into one that keeps block inputs in host memory.

    Blocks that keep more than their inputs, by a policy, stay as they are. Where no block is marked a `UserWarning`
    says how to mark some.
    """

    def apply_offloaded(params: Params, model_state: ModelState, batch: Batch, key: jax.Array, train: bool) -> PyTree:
        args = (params, model_state, batch, key)
        program, out_shape = trace(lambda *args: apply(*args, train), *args)
        if train and not any(remat_regions(program)):
            warnings.warn(
                "activation_checkpointing.cpu_checkpointing has no effect: the model recomputes nothing; mark its "
                "blocks with its own option, with jzero.remat, or in the configuration with "
                '"jzero": {"remat": {"modules": ["Block"]}}.',
                stacklevel=2,
            )
        outs = evaluate(with_params(program, _offloaded), jax.tree.leaves(args))
        return jax.tree.structure(out_shape).unflatten(outs)

    return apply_offloaded


def remat_regions(program: Program) -> Iterator[Equation]:
    """Every `jax.checkpoint` region in a program, however deep inside."""
    return (eqn for eqn, *_ in every_equation(program) if is_remat(eqn))


def _offloaded(eqn: Equation) -> dict[str, object]:
    """The policy that a region gets, if it keeps nothing but its inputs."""
    keeps_inputs = is_remat(eqn) and remat_of(eqn).policy in (None, jax.checkpoint_policies.nothing_saveable)
    return {"policy": OFFLOAD} if keeps_inputs else {}
