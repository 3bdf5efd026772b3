"""The optimizer's update of parameters that live in host memory: one after the other, large ones in pieces.

The update is traced once, as a whole; of its jaxpr, each parameter gets the part that its own new value and moments
need. That part must read no other parameter. Where it is elementwise it runs on pieces.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from jzero.base.types import Grads, OptState, Params, PyTree
from jzero.errors import ConfigError
from jzero.jaxpr import Subprogram, evaluate, parts, trace
from jzero.jaxpr.elementwise import is_elementwise, run_on_pieces
from jzero.offload.host.stream import serialize_after, update_in_pieces
from jzero.optim.apply import apply_optimizer, widened
from jzero.sharding.host_memory import to_device, to_host
from jzero.sharding.mesh import shard_over_data
from jzero.sharding.placement import Placement

IN_FLIGHT = 2
"""Parameters whose copies may be under way at once."""


@dataclass(frozen=True)
class Leaf:
    """A parameter on the host, and its part of the update.

    Attributes:
        name: its dotted name.
        placement: how it lies over the mesh.
        inputs: its gradient, moments and value among the inputs of the update.
        outputs: its new moments and value among the outputs.
        program: what computes the outputs.
        reads: the inputs that the program takes, in order.
        in_pieces: whether the program is elementwise.
    """

    name: str
    placement: Placement
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    program: Subprogram
    reads: tuple[int, ...]
    in_pieces: bool


@dataclass(frozen=True)
class Plan:
    """An optimizer's update, taken apart.

    Attributes:
        leaves: the parameters on the host.
        n_params: the number of trainable parameters.
        rest: the program of everything else.
        rest_reads: its inputs.
        rest_outputs: its outputs.
    """

    leaves: tuple[Leaf, ...]
    n_params: int
    rest: Subprogram
    rest_reads: tuple[int, ...]
    rest_outputs: tuple[int, ...]


def plan_update(
    optimizer: optax.GradientTransformationExtraArgs,
    params: Params,
    opt_state: OptState,
    owners: Sequence[int | None],
    names: Sequence[str],
    placements: Sequence[Placement],
    on_host: Sequence[bool],
) -> Plan:
    """Takes an optimizer's update apart.

    The update is seen as a function of flat lists: gradients, optimizer state, parameters, loss -> state, parameters.

    Args:
        optimizer: the optax transformation.
        params: abstract trainable parameters, true shapes.
        opt_state: abstract optimizer state, true shapes.
        owners: for each leaf of the state, the parameter that it mirrors.
        names: the parameters' dotted names.
        placements: how the parameters lie.
        on_host: which of them, with their moments, live on the host.

    Raises:
        ConfigError: the update of a parameter on the host reads other parameters.
    """
    part_of = parts(_trace(optimizer, params, opt_state))
    n_params, n_state = len(names), len(owners)

    def own(k: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        moments = [j for j, owner in enumerate(owners) if owner == k]
        return (k, *[n_params + j for j in moments], n_params + n_state + k), (*moments, n_state + k)

    hosted = {k: own(k) for k in range(n_params) if on_host[k]}
    owner_of_input = {i: k for k, (inputs, _) in hosted.items() for i in inputs}
    taken = {i for _, outputs in hosted.values() for i in outputs}

    def part(outputs: Sequence[int], k: int | None, what: str) -> tuple[Subprogram, tuple[int, ...]]:
        piece, reads = part_of(outputs)
        foreign = [owner_of_input[i] for i in reads if owner_of_input.get(i, k) != k]
        if foreign:
            raise ConfigError(
                f"the optimizer's update of {what} reads {names[min(foreign)]}, so parameters cannot pass "
                "through the device one by one; set zero_optimization.offload_optimizer.device to none, or use an "
                "optimizer that treats each parameter by itself."
            )
        return piece, tuple(reads)

    leaves = []
    for k, (inputs, outputs) in hosted.items():
        piece, reads = part(outputs, k, names[k])
        in_pieces = is_elementwise(piece, [i in inputs for i in reads], placements[k].shape)
        leaves.append(Leaf(names[k], placements[k], inputs, outputs, piece, reads, in_pieces))
    rest_outputs = tuple(i for i in range(n_state + n_params) if i not in taken)
    return Plan(tuple(leaves), n_params, *part(rest_outputs, None, "what stays on the device"), rest_outputs)


def _trace(optimizer: optax.GradientTransformationExtraArgs, params: Params, opt_state: OptState) -> Subprogram:
    def update(grads: Grads, state: PyTree, params: Params, loss: jax.Array) -> tuple[list, list]:
        params, state = apply_optimizer(optimizer, grads, state, params, loss)
        return jax.tree.leaves(state), jax.tree.leaves(params)

    grads = jax.eval_shape(widened, params)
    return trace(update, grads, opt_state, params, jax.ShapeDtypeStruct((), jnp.float32))[0]


@dataclass(frozen=True)
class UpdateStep:
    """What an update needs to know of the step around it.

    Attributes:
        prepare: `prepare(i, gradient, scalars)`: what the optimizer sees of the gradient of parameter `i`.
        keep: `keep(new, old, scalars)`: the new value, or the old one in a step that is skipped.
        scalars: pytree of what these two need.
        piece_elements: see `update_in_pieces`.
    """

    prepare: Callable[[int, jax.Array, PyTree], jax.Array]
    keep: Callable[[jax.Array, jax.Array, PyTree], jax.Array]
    scalars: PyTree
    piece_elements: int


def run_update(
    plan: Plan, operands: Sequence[jax.Array], placements: Sequence[Placement], mesh: Mesh, step: UpdateStep
) -> list[jax.Array]:
    """Runs an update.

    Args:
        plan: from `plan_update`.
        operands: gradients, optimizer state, parameters and loss, flat, in stored (padded) shapes.
        placements: of each operand.
        mesh: the devices.
        step: the step around it.

    Returns:
        The new optimizer state and parameters, flat, in stored shapes, each where it was.
    """
    at = dict(enumerate(operands))
    results = run_rest(plan, operands, placements, step)
    done: list[list[jax.Array]] = []
    for leaf in plan.leaves:
        if not leaf.in_pieces:
            fetched = [to_device(x) for x in _serialize([at[i] for i in leaf.inputs], done)]
            here = at | dict(zip(leaf.inputs, fetched, strict=True))
            new = _whole(plan, (leaf.program, leaf.reads, leaf.outputs), here, placements, step)
            done.append([to_host(x) for x in new])
    for leaf, new in zip([leaf for leaf in plan.leaves if not leaf.in_pieces], done, strict=True):
        results |= zip(leaf.outputs, new, strict=True)

    pieced = [leaf for leaf in plan.leaves if leaf.in_pieces]
    shared = {i for leaf in pieced for i in leaf.reads if i not in leaf.inputs}
    inputs = shared | {i for leaf in pieced for i in leaf.inputs}
    specs = {i: placements[i].spec for i in inputs}
    local = shard_over_data(
        lambda at, scalars: _in_pieces(pieced, at, replace(step, scalars=scalars), plan.n_params),
        mesh,
        (specs, P()),
        {j: specs[plan.n_params + j] for leaf in pieced for j in leaf.outputs},
    )
    results |= local({i: at[i] for i in inputs}, step.scalars)
    return [results[j] for j in range(len(results))]


def run_rest(
    plan: Plan, operands: Sequence[jax.Array], placements: Sequence[Placement], step: UpdateStep
) -> dict[int, jax.Array]:
    """Runs the part of an update that is on the devices; see `run_update`.

    Returns:
        The new values, by their number among optimizer state and parameters.
    """
    part = plan.rest, plan.rest_reads, plan.rest_outputs
    return dict(zip(plan.rest_outputs, _whole(plan, part, dict(enumerate(operands)), placements, step), strict=True))


def _whole(
    plan: Plan,
    part: tuple[Subprogram, Sequence[int], Sequence[int]],
    at: Mapping[int, jax.Array],
    placements: Sequence[Placement],
    step: UpdateStep,
) -> list[jax.Array]:
    """Runs a part of an update, (program, what it reads, its outputs), on whole parameters on the devices."""
    program, reads, outputs = part
    true = [placements[i].unpad(at[i]) for i in reads]
    true = [step.prepare(i, x, step.scalars) if i < plan.n_params else x for i, x in zip(reads, true, strict=True)]
    new = evaluate(program, true)
    olds = [plan.n_params + j for j in outputs]
    return [step.keep(placements[i].pad(x), at[i], step.scalars) for i, x in zip(olds, new, strict=True)]


def _in_pieces(
    leaves: Sequence[Leaf], at: Mapping[int, jax.Array], step: UpdateStep, n_params: int
) -> dict[int, jax.Array]:
    """Updates the device's own parts of parameters, inside `shard_map`."""
    done: list[list[jax.Array]] = []
    for leaf in leaves:
        values = dict(zip(leaf.inputs, _serialize([at[i] for i in leaf.inputs], done), strict=True))
        olds = [n_params + j for j in leaf.outputs]
        gradient = leaf.inputs[0]

        def update(*pieces: jax.Array, leaf: Leaf = leaf, olds: Sequence[int] = olds, gradient: int = gradient):
            own = dict(zip([*olds, gradient], pieces, strict=True))
            own[gradient] = step.prepare(gradient, own[gradient], step.scalars)
            new = run_on_pieces(leaf.program, [own[i] if i in own else at[i] for i in leaf.reads], pieces[0].shape)
            return [step.keep(x, own[i], step.scalars) for i, x in zip(olds, new, strict=True)]

        done.append(update_in_pieces(update, [values[i] for i in olds], [values[gradient]], step.piece_elements))
    return {j: x for leaf, new in zip(leaves, done, strict=True) for j, x in zip(leaf.outputs, new, strict=True)}


def _serialize(waiting: list[jax.Array], done: list[list[jax.Array]]) -> list[jax.Array]:
    """Makes a parameter wait for the one before the last, so that one comes in while another leaves, and no more."""
    if len(done) < IN_FLIGHT:
        return waiting
    waiting, done[-IN_FLIGHT] = serialize_after(waiting, done[-IN_FLIGHT])
    return waiting
