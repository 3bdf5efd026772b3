"""The last part of a step: clip the gradients and update the parameters, on global arrays."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jzero.jaxpr import run_replacing, trace
from jzero.offload.host.update import Step, run_rest, run_update
from jzero.offload.nvme.partition import DeferredUpdate
from jzero.optim.apply import apply_optimizer
from jzero.sharding.host_memory import is_on_host
from jzero.sharding.placement import Placement
from jzero.sharding.trees import is_placement, pad, split, unpad
from jzero.zero.grad_stats import GradStats
from jzero.zero.grads import times
from jzero.zero.spec import StepSpec


def update_on_devices(
    spec: StepSpec, trained: Any, opt_state: Any, grads: Any, unscale: jax.Array, loss: jax.Array, grad_stats: GradStats
) -> tuple[Any, Any]:
    """Updates parameters that live on the devices.

    Args:
        spec: everything fixed.
        trained: the trainable parameters, stored shapes.
        opt_state: the optimizer's state, stored shapes.
        grads: like `trained`.
        unscale: what gradients on the host are to be multiplied by.
        loss: f32[].
        grad_stats: of the gradients.

    Returns:
        New parameters and optimizer state, stored shapes; the old ones if the step is skipped.
    """
    del unscale  # every gradient is unscaled already
    placements, _ = split(spec.placements, spec.trainable)
    divisor = _clip_divisor(grad_stats.norm, spec.config.gradient_clipping)
    grads = jax.tree.map(lambda g: _divided(g, divisor), unpad(grads, placements))
    before = unpad(trained, placements), unpad(opt_state, spec.opt_placements)
    optimizer = optax.with_extra_args_support(spec.optimizer)

    def proposed(kept: tuple[Any, Any], grads: Any, loss: jax.Array) -> tuple[Any, Any]:
        return apply_optimizer(optimizer, grads, kept[1], kept[0], loss)

    program, shapes = trace(proposed, before, grads, loss)
    # Where an update goes on from a new moment, it goes on from the one that is kept, which is the same unless the step
    # is skipped, and then nothing of it remains. XLA would otherwise compute it twice or copy the old one.
    operands = jax.tree.leaves((before, grads, loss))
    new = run_replacing(program, operands, lambda new, old: keep(new, old, grad_stats.finite))
    params, state = jax.tree.unflatten(jax.tree.structure(shapes), new)
    return pad(params, placements), pad(state, spec.opt_placements)


def update_from_host(
    spec: StepSpec, trained: Any, opt_state: Any, grads: Any, unscale: jax.Array, loss: jax.Array, grad_stats: GradStats
) -> tuple[Any, Any]:
    """The same where state lives in host memory, and passes through the devices parameter by parameter."""
    assert spec.update_plan is not None
    placements = jax.tree.leaves(split(spec.placements, spec.trainable)[0], is_leaf=is_placement)
    opt_placements = jax.tree.leaves(spec.opt_placements, is_leaf=is_placement)
    flat_grads, (params, treedef) = jax.tree.leaves(grads), jax.tree.flatten(trained)
    state, state_treedef = jax.tree.flatten(opt_state)
    sums = {i for i, grad in enumerate(flat_grads) if is_on_host(grad)}

    def prepare(i: int, grad: jax.Array, scalars: dict[str, Any]) -> jax.Array:
        grad = times(grad, scalars["unscale"]) if i in sums else grad
        return _divided(grad, scalars["divisor"])

    divisor = _clip_divisor(grad_stats.norm, spec.config.gradient_clipping)
    step = Step(
        prepare,
        lambda new, old, scalars: keep(new, old, scalars["finite"]),
        {"unscale": unscale, "divisor": divisor, "finite": grad_stats.finite},
        spec.offload_plan.piece_elements,
    )
    operands = [*flat_grads, *state, *params, loss]
    lie = [*placements, *opt_placements, *placements, Placement(())]
    new = run_update(spec.update_plan, operands, lie, spec.mesh, step)
    return treedef.unflatten(new[len(state) :]), state_treedef.unflatten(new[: len(state)])


def update_beside_files(
    spec: StepSpec, trained: Any, opt_state: Any, grads: Any, unscale: jax.Array, loss: jax.Array, grad_stats: GradStats
) -> tuple[Any, Any, DeferredUpdate]:
    """The same where moments and master copy of large parameters are in files: it updates the others.

    Returns:
        As `update_on_devices`, with None for what is in files or made from it; and what the update of that needs.
    """
    plan = spec.update_plan
    assert plan is not None
    placements = jax.tree.leaves(split(spec.placements, spec.trainable)[0], is_leaf=is_placement)
    opt_placements, opt_treedef = jax.tree.flatten(spec.opt_placements, is_leaf=is_placement)
    flat_grads, (params, treedef) = jax.tree.leaves(grads), jax.tree.flatten(trained)
    state = opt_treedef.flatten_up_to(opt_state)
    divisor = _clip_divisor(grad_stats.norm, spec.config.gradient_clipping)
    step = Step(
        lambda _, grad, scalars: _divided(grad, scalars),
        lambda new, old, _: keep(new, old, grad_stats.finite),
        divisor,
        spec.offload_plan.piece_elements,
    )
    operands = [*flat_grads, *state, *params, loss]
    new = run_rest(plan, operands, [*placements, *opt_placements, *placements, Placement(())], step)
    results = [new.get(j) for j in range(len(state) + len(params))]
    scalars = {i: operands[i] for leaf in plan.leaves for i in leaf.reads if i not in leaf.inputs}
    left = [flat_grads[leaf.inputs[0]] for leaf in plan.leaves]
    if spec.offload_plan.at_use:  # gradients on the host, still to be multiplied
        divisor = (1.0 if divisor is None else divisor) / unscale
    deferred = DeferredUpdate(left, scalars, divisor, grad_stats.finite)
    return treedef.unflatten(results[len(state) :]), opt_treedef.unflatten(results[: len(state)]), deferred


def keep(new: Any, old: Any, finite: jax.Array) -> Any:
    """Skip, don't branch: a step with a non-finite gradient selects the old state, on every device alike."""
    return jax.tree.map(lambda new, old: jax.lax.select(finite, new, old), new, old)


def _clip_divisor(norm: jax.Array, max_norm: float) -> jax.Array | None:
    """Clips by global norm as DeepSpeed does: (norm + 1e-6) / max_norm where that exceeds 1; None if nothing clips."""
    return jnp.maximum((norm + 1e-6) / max_norm, 1.0) if max_norm else None


def _divided(grad: jax.Array, divisor: jax.Array | None) -> jax.Array:
    return grad if divisor is None else grad / divisor.astype(grad.dtype)
