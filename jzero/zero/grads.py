"""The part of a step that ZeRO's collectives are placed in by hand: loss and gradients, inside `shard_map`."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jax.tree_util import KeyPath
from jax.typing import DTypeLike

from jzero.base.types import Grads, Metrics, ModelState, Params, Placements
from jzero.flax.mean import Mean
from jzero.gather import GradSums, Limits, gather_at_use
from jzero.optim.apply import widened
from jzero.optim.clipping import times
from jzero.sharding.collectives import GradReduceConfig, gather_leaf, label, scatter_leaf, sum_leaves
from jzero.sharding.host_memory import is_on_host
from jzero.sharding.mesh import DATA_AXES, n_data_shards, shard_over_data
from jzero.sharding.placement import Placement, path_name
from jzero.sharding.trees import is_placement, join, split
from jzero.zero.grad_stats import GradStats, first, measure_grads
from jzero.zero.groups import grad_sums, in_group, reduced_over_groups
from jzero.zero.micro_batches import accumulated_grads, accumulation_of, as_before, in_dtype, positive
from jzero.zero.spec import StepSpec
from jzero.zero.stages import Gather, StagePlan


class GradOutputs(NamedTuple):
    """What the manual part of a step gives.

    Attributes:
        grads: averages over the batch; those that go to the host are sums.
        unscale: `f32[]`, what those on the host are still to be multiplied by.
        loss: `f32[]`, over the whole batch.
        metrics: what else the loss returned, averaged likewise.
        model_state: the new one.
        stats: of the gradients.
        micro_batch: `int32[]`, the first of several micro-batches in which something was not finite; -1 if none.
    """

    grads: Grads
    unscale: jax.Array
    loss: jax.Array
    metrics: Metrics
    model_state: ModelState
    stats: GradStats
    micro_batch: jax.Array


def sharded_grads(spec: StepSpec) -> Callable[..., GradOutputs]:
    """Builds the manual part of a step, a function of parameters, model state, a batch, a key and the loss scale."""
    n_shards = n_data_shards(spec.mesh)
    placements, _ = split(spec.placements, spec.trainable)
    specs, _ = split(spec.specs, spec.trainable)
    casts, _ = split(spec.casts, spec.trainable)
    accumulation = accumulation_of(spec, placements)

    def local(params_sharded, model_state, batch, key_data, scale):
        stored = spec.offload.fetched(params_sharded)
        params_sharded = spec.precision.grad_params(spec.offload.grad_params(stored))
        sums = grad_sums(spec, params_sharded)
        params, apply = differentiable_loss(spec, params_sharded, stored, train=True, sums=sums)
        trained, frozen = split(params, spec.trainable)
        key = jax.random.fold_in(jax.random.wrap_key_data(key_data), jax.lax.axis_index(DATA_AXES))

        def loss(trained, model_state, micro_batch, key):
            return apply(join(trained, frozen), model_state, spec.precision.inputs(micro_batch), key)

        total = accumulated_grads(replace(accumulation, sums=sums), loss, trained, model_state, batch, key, scale)
        grads = in_dtype(jnp.float32, _reduce_at_end(spec.plan, total.grads, placements, spec.grad_reduce))
        grads = reduced_over_groups(grads, placements, spec.grad_reduce)
        grads = jax.tree.map(lambda g: g if is_on_host(g) else times(g, total.unscale), grads)
        sums = {"nonfinite_micro_batch": Mean(total.bad), **total.sums}
        averages = averages_of(sums, n_shards * accumulation.n_micro)
        micro_batch = first(averages.pop("nonfinite_micro_batch") > 0)
        stats = measure_grads(grads, placements, casts, scale, total.unscale, spec.offload.piece_elements)
        new_model_state = _agree(total.model_state, model_state)
        return GradOutputs(grads, total.unscale, averages.pop("loss"), averages, new_model_state, stats, micro_batch)

    in_specs = (spec.specs, P(), P(None, DATA_AXES), P(), P())
    return shard_over_data(local, spec.mesh, in_specs, GradOutputs(specs, *[P()] * 6))  # pyright: ignore


def differentiable_loss(
    spec: StepSpec, params_sharded: Params, stored: Params, *, train: bool, sums: GradSums | None = None
) -> tuple[Params, Callable]:
    """The loss of a stage, and what it is differentiated with respect to: the shards, or at stages 0 and 1 the whole.

    Where the stage gathers at use, nothing is gathered here: the loss does that when it runs. At two levels that is
    inside of a group, whose shards are gathered here.

    Args:
        spec: everything fixed.
        params_sharded: what gradients are taken of.
        stored: the parameters as `Offload.fetched` gave them, before `grad_params`.
        train: whether this is a training step.
        sums: see `jzero.gather.gather_at_use`.

    Returns:
        What is differentiated, and `loss(that, model_state, batch, key) -> Outcome`.
    """

    def apply(params, model_state, batch, key):
        return spec.model.apply(params, model_state, batch, key, train)

    placements, casts, wholes, ready = spec.placements, spec.casts, None, None
    if spec.plan.gather is not Gather.AT_USE:

        def gathered(path: KeyPath, placement: Placement, shard: jax.Array, cast: tuple[DTypeLike, ...]) -> jax.Array:
            with label("gather", path_name(path), "the step"):
                return gather_leaf(shard, placement, cast)

        wholes = jax.tree_util.tree_map_with_path(gathered, placements, params_sharded, casts, is_leaf=is_placement)
        if not spec.plan.scatters_at_use:
            # What is differentiated are the whole parameters; their gradients stay on the device until the end.
            params_sharded, wholes = wholes, None
            placements = jax.tree.map(lambda p: Placement(p.shape), placements, is_leaf=is_placement)
            casts = jax.tree.map(lambda _: (), placements, is_leaf=is_placement)
    else:
        ready = spec.offload.compute_shards(stored)
        if spec.two_level:
            params_sharded, ready, placements = in_group(spec, params_sharded, ready)
    zero = spec.config.zero_optimization
    limits = Limits(zero.stage3_prefetch_bucket_size, zero.stage3_max_live_parameters, zero.stage3_max_reuse_distance)
    return params_sharded, gather_at_use(
        apply,
        placements,
        spec.grad_reduce,
        casts=casts,
        trainable=spec.trainable,
        wholes=wholes,
        ready=ready,
        limits=limits if spec.plan.gather is Gather.AT_USE else None,
        sums=sums,
    )


def _reduce_at_end(plan: StagePlan, grads: Grads, placements: Placements, grad_reduce: GradReduceConfig) -> Grads:
    """Sums what is still the device's own: every gradient at stages 0 and 1, those of whole leaves at 2 and 3.

    Sharded ones are then sums over a group of devices, see `jzero.zero.groups`.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(grads)
    flat = treedef.flatten_up_to(placements)
    whole = iter(sum_leaves([g for (_, g), p in zip(paths, flat, strict=True) if p.dim is None], grad_reduce))
    reduced = []
    for (path, grad), placement in zip(paths, flat, strict=True):
        if placement.dim is None:
            reduced.append(next(whole))
        elif plan.scatters_at_use:
            reduced.append(grad)
        else:
            with label("scatter", path_name(path), "the step"):
                reduced.append(scatter_leaf(grad, placement.in_group, grad_reduce))
    return treedef.unflatten(reduced)


def averages_of(sums: dict[str, Mean], count: int) -> dict[str, jax.Array]:
    """Local sums -> means over all devices, in one collective."""
    totals = jax.lax.psum(sums, DATA_AXES)
    return {name: m.total / (count if m.weight is None else positive(m.weight)) for name, m in totals.items()}


class WeightedSum(NamedTuple):
    """A total over all devices, and what it is to be divided by."""

    total: jax.Array
    weight: jax.Array


def eval_sums(local: dict[str, Mean], n_shards: int, n_rows: int, *, divided: bool) -> dict[str, WeightedSum]:
    """Local sums -> totals and weights over all rows.

    Args:
        local: of this device's rows.
        n_shards: how many devices there are that could take different rows.
        n_rows: how many rows there are in all; where all count alike, their number is the weight.
        divided: whether the devices have different rows; else each has all of them.
    """
    copies = 1 if divided else n_shards
    totals = jax.lax.psum(local, DATA_AXES)
    alike = jnp.float32(n_rows)
    return {
        name: WeightedSum(m.total / n_shards * alike, alike)
        if m.weight is None
        else WeightedSum(m.total / copies, m.weight / copies)
        for name, m in totals.items()
    }


def _agree(model_state: ModelState, before: ModelState) -> ModelState:
    """Averages model state that a step has changed, so that it stays the same on every device."""

    def agree(new, old):
        if new is old or not jnp.issubdtype(new.dtype, jnp.inexact):
            return new
        return as_before(jax.lax.pmean(widened(new), DATA_AXES), new)

    return jax.tree.map(agree, model_state, before)
