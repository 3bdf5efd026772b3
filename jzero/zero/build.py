"""The functional layer: a model, a loss and a configuration become pure `init`, `step` and `evaluate` functions.

The engine is a thin object around it; those who write their own loops, and the planner, which compiles the step for
GPUs that are not there, use it directly. Building it runs nothing on the devices: the model is only traced.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.config import Config, ResolvedConfig
from jzero.config.resolve.auto import hidden_size_of
from jzero.errors import BatchError, ConfigError, ModelError
from jzero.flax.model import Model, adapt
from jzero.flax.rematerialise import remat
from jzero.gather import scanned_dims
from jzero.gather.trace.regions import inputs_on_host
from jzero.offload.host.stream import largest_piece
from jzero.offload.host.update import plan_update
from jzero.offload.host_budget import Budget, budget
from jzero.offload.nvme.partition import DeferredUpdate, StatePartition, partition_state
from jzero.offload.offload_plan import offload_plan
from jzero.optim import build_optimizer
from jzero.sharding.host_memory import sharding
from jzero.sharding.mesh import DATA_AXES, n_data_shards, platform, shard_over_data
from jzero.sharding.placement import SMALL_LEAF_ELEMENTS, Placement, path_name, place_all
from jzero.sharding.trees import is_placement, owners, pad, place_like_params, replicated, shardings, split, stored
from jzero.zero.loss_scale import init_loss_scale
from jzero.zero.precision import Precision, precision
from jzero.zero.spec import StepSpec
from jzero.zero.stages import stage_plan
from jzero.zero.state import TrainState
from jzero.zero.step import eval_step, train_step
from jzero.zero.xla_options import compiler_options

Trainable = Callable[[str], bool]


@dataclass(frozen=True)
class Functional:
    """A training run as pure functions.

    Attributes:
        init: `init(seed) -> state`; jitted, every array is born sharded.
        step: `step(state, batch) -> (state, metrics)`; jitted, the old state's memory is reused. Leaves of `batch` are
            `[gradient_accumulation_steps, rows of a micro-batch over all devices, ...]`. With state in files it leaves
            something to be done, see `jzero.zero.step.train_step`.
        evaluate: `evaluate(state, batch) -> metrics`; jitted, leaves of `batch` are `[rows, ...]`.
        state: the abstract state, with shardings: padded shapes, as stored.
        batch: the abstract training batch, with shardings.
        placements: a `TrainState` of `Placement`s: the true shapes and how they lie over the mesh.
        scanned: for the index of a parameter, in flattening order, the dimensions that a loop over layers walks along.
        host_budget: what offloading takes of the host, for each device.
        spec: everything fixed that went into the above.
        initial: `init` as a plain function, of the whole state.
        whole: the abstract state with what is in files, which then lies in host memory; else the same as `state`.
        partition: what of it is in files; None if nothing is.
    """

    init: Any
    step: Any
    evaluate: Any
    state: TrainState
    batch: Any
    placements: TrainState
    scanned: Mapping[int, frozenset[int]]
    host_budget: Budget
    spec: StepSpec
    initial: Callable
    whole: TrainState
    partition: StatePartition | None


def functional(
    *,
    model: Any,
    loss_fn: Callable,
    config: ResolvedConfig,
    sample_batch: Any,
    mesh: Mesh,
    optimizer: optax.GradientTransformation | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Trainable | Any | None = None,
) -> Functional:
    """Builds the functional layer.

    Args:
        model: see `jzero.flax.model.adapt`; or what `adapted` gave, which is traced anew only for new shapes.
        loss_fn: see `jzero.flax.model.adapt`.
        config: a resolved configuration.
        sample_batch: a pytree whose leaves have leading dimension `train_batch_size`; only shapes and dtypes are read.
        mesh: from `jzero.sharding.mesh.make_mesh`.
        optimizer: an optax transformation in place of the configuration's `optimizer`, without gradient clipping.
        schedule: applied steps -> learning rate, in place of the configuration's `scheduler`.
        trainable: which parameters to train: a function of the dotted name, or a pytree of bool like the parameters.
            All by default. The others get no optimizer state and no gradients.

    Raises:
        JzeroError: whatever does not fit, in one sentence.
    """
    group = config.zero_optimization.shard_group
    if group is not None and group != mesh.shape["shard"]:
        raise ConfigError(
            f"`zero_optimization.mics_shard_size` = {group}, but the axis `shard` of the mesh has "
            f"{mesh.shape['shard']} devices; pass make_mesh(replica=...) that fits, or no mesh."
        )
    plan, dtypes = stage_plan(config.zero_optimization.stage), precision(config)
    batch = _batch_shapes(sample_batch, config, mesh)
    local_batch = _local_shapes(batch, n_data_shards(mesh))
    pure_model = adapted(model, loss_fn, config)
    params, model_state = _abstract_model(pure_model, dtypes, local_batch)
    mask = _trainable_mask(params, trainable)
    dtypes.check(params)
    casts = dtypes.casts(params)

    scanned = _scanned(pure_model, dtypes, mesh, params, model_state, local_batch)
    threshold = config.zero_optimization.stage3_param_persistence_threshold
    placements = place_all(
        params,
        mesh.shape["shard"] if plan.shards_state else 1,
        replicate_below=threshold if plan.persists_small_leaves else SMALL_LEAF_ELEMENTS,
        unshardable_dims=scanned,
        shard_single=config.zero_optimization.offloads_params or config.zero_optimization.swaps_optimizer,
    )
    lives = offload_plan(config, plan, placements, mask, largest_piece(platform(mesh)))
    trained, _ = split(params, mask)
    momentum = None
    if optimizer is None:
        optimizer, schedule, momentum = build_optimizer(
            config, schedule=schedule, parameters=_loop_dims(params, mask, scanned)
        )
    elif config.jzero.param_groups:
        raise ConfigError(
            "jzero.param_groups is for the configuration's `optimizer`, and another one was passed as `optimizer=`; "
            "use optax.masked there, or remove the key."
        )
    opt_state = jax.eval_shape(lambda trained: optimizer.init(dtypes.optimized(trained)), trained)
    trained_placements, _ = split(placements, mask)
    opt_placements = place_like_params(opt_state, trained, trained_placements)
    mirrored, hosted = owners(opt_state, trained), jax.tree.leaves(split(lives.on_host, mask)[0])
    opt_on_host = jax.tree.map(lambda owner: owner >= 0 and hosted[owner], mirrored)
    update_plan = None
    if any(hosted):
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(trained)]
        lie = jax.tree.leaves(trained_placements, is_leaf=is_placement)
        update_plan = plan_update(
            optax.with_extra_args_support(optimizer), trained, opt_state, jax.tree.leaves(mirrored), names, lie, hosted
        )
    spec = StepSpec(
        model=pure_model,
        config=config,
        plan=plan,
        precision=dtypes,
        mesh=mesh,
        placements=placements,
        trainable=mask,
        casts=casts,
        optimizer=optimizer,
        opt_placements=opt_placements,
        schedule=schedule,
        momentum=momentum,
        offload_plan=lives,
        update_plan=update_plan,
    )

    def init_state(seed: jax.Array, given_params: Any = None) -> TrainState:
        key = jax.random.key(seed)
        made, state = pure_model.init(key, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), local_batch))
        if given_params is not None:
            made = jax.tree.map(lambda x, like: jnp.asarray(x).astype(like.dtype), given_params, made)
        master = dtypes.master_params(made)
        return TrainState(
            params=pad(master, placements),
            opt_state=pad(optimizer.init(dtypes.optimized(split(master, mask)[0])), opt_placements),
            model_state=dtypes.state(state),
            loss_scale=init_loss_scale(config),
            step=jnp.zeros((), jnp.int32),
            applied_steps=jnp.zeros((), jnp.int32),
            rng=jax.random.key_data(jax.random.fold_in(key, 1)),
        )

    true_state = jax.eval_shape(init_state, jnp.uint32(0))
    whole = jax.tree.map(lambda x: Placement(tuple(x.shape)), true_state)
    state_placements = TrainState(**{**vars(whole), "params": placements, "opt_state": opt_placements})
    on_device = jax.tree.map(lambda _: False, true_state)
    on_host = TrainState(**{**vars(on_device), "params": lives.on_host, "opt_state": opt_on_host})
    whole_state = abstract_state = stored(state_placements, true_state, mesh, on_host)
    everywhere, partition, init = replicated(mesh), None, init_state
    at = shardings(state_placements, mesh, on_host)
    outputs: tuple = (at, everywhere)
    if lives.in_files:
        assert update_plan is not None
        partition = partition_state(update_plan, whole_state, mask, casts)
        on_host = replace(on_device, params=lives.on_host if lives.at_use else on_device.params)
        abstract_state = partition.abstract(stored(state_placements, true_state, mesh, on_host))
        at = jax.tree.map(lambda x: x.sharding, abstract_state)
        left = [sharding(mesh, p.spec, on_host=lives.at_use) for p in partition.placements]
        outputs = (partition.without(at), everywhere, DeferredUpdate(left, *[everywhere] * 3))  # pyright: ignore
        init = lambda *given: partition.on_devices(init_state(*given))
    options = compiler_options(mesh, config, dtypes, _layer_size(placements, scanned))
    return Functional(
        init=jax.jit(init, out_shardings=at),
        step=jax.jit(
            train_step(spec),
            donate_argnums=() if lives.in_files else 0,
            out_shardings=outputs,
            compiler_options=options,
        ),
        evaluate=jax.jit(eval_step(spec), out_shardings=everywhere, compiler_options=options),
        state=abstract_state,
        batch=batch,
        placements=state_placements,
        scanned=scanned,
        host_budget=budget(
            abstract_state,
            on_host.params,
            placements,
            at_use=lives.at_use,
            n_micro=config.gradient_accumulation_steps,
            in_files=partition.bytes_in_files(whole_state) if partition else 0,
        ),
        spec=spec,
        initial=init_state,
        whole=whole_state,
        partition=partition,
    )


def adapted(model: Any, loss_fn: Callable, config: Config) -> Model:
    """The model and its loss as pure functions, with what the configuration says of rematerialisation.

    Args:
        model: see `functional`; what this function gave comes back as it is.
        loss_fn: see `functional`.
        config: resolved or not.
    """
    if isinstance(model, Model):
        return model
    if config.jzero.remat:
        model = remat(model, config.jzero.remat.modules, config.jzero.remat.policy)
    pure = adapt(model, loss_fn)
    offloads = config.activation_checkpointing and config.activation_checkpointing.cpu_checkpointing
    # Under `jit` so that a loss is traced once for the search for loops, the step, and every setting of a plan.
    return pure._replace(apply=jax.jit(inputs_on_host(pure.apply) if offloads else pure.apply, static_argnums=4))


def model_width(model: Model, sample_batch: Any) -> int | None:
    """The width of a model, which `"auto"` sizes of buckets derive from; None if it has no matrices.

    Args:
        model: from `adapted`.
        sample_batch: see `functional`; the model is traced with its shapes.
    """
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jax.dtypes.canonicalize_dtype(x.dtype)), sample_batch
    )
    params, _ = jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0), batch)
    return hidden_size_of(x.shape for x in jax.tree.leaves(params))


def _batch_shapes(sample_batch: Any, config: ResolvedConfig, mesh: Mesh) -> Any:
    """`[train_batch_size, ...]` -> abstract `[accumulation, micro-batch, ...]`, sharded on the second dimension."""
    n_micro, total = config.gradient_accumulation_steps, config.train_batch_size
    if not jax.tree.leaves(sample_batch):
        raise BatchError("sample_batch holds no arrays; give one batch as train_batch would get it.")
    per_process = total // jax.process_count()

    def reshaped(path, x):
        if not jnp.ndim(x) or x.shape[0] not in (total, per_process):
            raise BatchError(
                f"sample_batch leaf {path_name(path) or '(the batch itself)'} has shape {tuple(jnp.shape(x))}; "
                f"its leading dimension must be train_batch_size = {total}."
            )
        sharding = NamedSharding(mesh, PartitionSpec(None, DATA_AXES))
        dtype = jax.dtypes.canonicalize_dtype(x.dtype)  # numpy's 64 bits become 32 unless JAX is told otherwise
        return jax.ShapeDtypeStruct((n_micro, total // n_micro, *x.shape[1:]), dtype, sharding=sharding)

    return jax.tree_util.tree_map_with_path(reshaped, sample_batch)


def _local_shapes(batch: Any, n_shards: int) -> Any:
    """The part of one micro-batch that one device sees."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[1] // n_shards, *x.shape[2:]), x.dtype), batch)


def _abstract_model(model: Model, dtypes: Precision, local_batch: Any) -> tuple[Any, Any]:
    """Shapes of the master parameters and of the model state."""

    def init(key, batch):
        params, model_state = model.init(key, batch)
        return dtypes.master_params(params), dtypes.state(model_state)

    params, model_state = jax.eval_shape(init, jax.eval_shape(jax.random.key, 0), local_batch)
    if not jax.tree.leaves(params):
        raise ModelError(
            "the model has no parameters (nnx.Param, or the collection 'params' in Linen), so nothing to train."
        )
    return params, model_state


def _trainable_mask(params: Any, trainable: Trainable | Any | None) -> Any:
    """A pytree of bool like the parameters; integer leaves cannot be trained."""
    if callable(trainable):
        mask = jax.tree_util.tree_map_with_path(lambda path, _: bool(trainable(path_name(path))), params)
    elif trainable is None:
        mask = jax.tree.map(lambda _: True, params)
    elif jax.tree.structure(trainable) == jax.tree.structure(params):
        mask = jax.tree.map(bool, trainable)
    else:
        raise ModelError("trainable must be a function of a parameter's name or a pytree of bool like the parameters.")
    mask = jax.tree.map(lambda wanted, x: wanted and jnp.issubdtype(x.dtype, jnp.inexact), mask, params)
    if not any(jax.tree.leaves(mask)):
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        raise ModelError(f"no parameter is trainable; the model has {', '.join(names[:5])}{', …' * (len(names) > 5)}.")
    return mask


def _scanned(
    model: Model, dtypes: Precision, mesh: Mesh, params: Any, model_state: Any, local_batch: Any
) -> Mapping[int, frozenset[int]]:
    """Traces the loss once, inside `shard_map` so that it may name mesh axes, to find what its loops walk along."""
    found: dict[int, frozenset[int]] = {}

    def probe(params, model_state, batch, key):
        def loss(params, model_state, batch, key):
            return model.apply(params, model_state, batch, key, True)

        found.update(scanned_dims(loss, dtypes.computed(params), model_state, dtypes.inputs(batch), key))
        return ()

    spec = PartitionSpec()
    key = jax.eval_shape(jax.random.key, 0)
    jax.eval_shape(shard_over_data(probe, mesh, spec, spec), params, model_state, local_batch, key)
    return found


def _layer_size(placements: Any, scanned: Mapping[int, frozenset[int]]) -> int:
    """Elements that one iteration of the innermost loops over layers gathers."""
    flat = jax.tree.leaves(placements, is_leaf=is_placement)
    return sum(
        math.prod(n for d, n in enumerate(flat[i].shape) if d not in dims)
        for i, dims in scanned.items()
        if flat[i].dim is not None
    )


def _loop_dims(params: Any, mask: Any, scanned: Mapping[int, frozenset[int]]) -> Mapping[str, frozenset[int]]:
    """Dotted name of each trainable parameter -> the dimensions that a loop over layers walks along."""
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return {
        name: scanned.get(i, frozenset())
        for i, (name, wanted) in enumerate(zip(names, jax.tree.leaves(mask), strict=True))
        if wanted
    }
