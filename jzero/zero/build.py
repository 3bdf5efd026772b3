"""Puts the parts of a step together: a model, a loss and a configuration become pure, compiled functions.

The engine is a thin object around them; the planner compiles them for GPUs that are not there. Building runs nothing on
the devices: the model is only traced.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from jzero.base.types import Batch, LossFn, Mask, Metrics, Params, Placements
from jzero.config import ResolvedConfig
from jzero.errors import ConfigError, OffloadError
from jzero.jaxpr.devices import target_of, traced_for
from jzero.offload.choose import offload_for
from jzero.offload.host_budget import Budget
from jzero.offload.interface import NewState, OptimizerLayout, StateLayout, StateStore
from jzero.optim import Optimizer, build_optimizer
from jzero.sharding.mesh import n_data_shards
from jzero.sharding.placement import SMALL_LEAF_ELEMENTS, Placement, place_all
from jzero.sharding.trees import pad, place_like_params, replicated, split, unpad
from jzero.zero import shapes
from jzero.zero.loss_scale import init_loss_scale
from jzero.zero.model_state import averaged_state
from jzero.zero.precision import precision_of
from jzero.zero.shapes import Trainable, adapted
from jzero.zero.spec import StepSpec
from jzero.zero.stages import stage_plan
from jzero.zero.state import TrainState
from jzero.zero.step import StepOutput, eval_step, partial_eval_step, train_step
from jzero.zero.targets import with_targets
from jzero.zero.xla_options import CompilerOptions, compiler_options


@dataclass(frozen=True)
class Functional:
    """A training run as pure functions.

    Attributes:
        init: `init(seed) -> state`; jitted, every array is born sharded.
        init_over: `init_over(seed, params) -> state`; jitted, of parameters as they are stored, whose memory it takes.
        program: `program(state, batch) -> StepOutput`; jitted, the old state's memory is reused. Leaves of `batch` are
            `[gradient_accumulation_steps, rows of a micro-batch over all devices, ...]`.
        evaluate: `evaluate(state, batch) -> metrics`; jitted, leaves of `batch` are `[rows, ...]`.
        evaluate_partial: `evaluate_partial(state, batch, rest) -> metrics`; the same where some rows are left over,
            which every device holds; `batch` is None if there are no others.
        batch: the abstract training batch, with shardings.
        placements: a `TrainState` of `Placement`s: the true shapes and how they lie over the mesh.
        scanned: for the index of a parameter, in flattening order, the dimensions that a loop over layers walks along.
        spec: everything fixed that went into the above.
        whole_init: `init` as a plain function, of the whole state.
        layout: where each array of the state lies.
        compiler_options: options that go to XLA with `program` and `evaluate`.
        averaged_state: names of the model's state that is averaged over the devices, since each changes it by its rows.
    """

    init: Callable[..., TrainState]
    init_over: Callable[..., TrainState]
    program: Callable[[TrainState, Batch], StepOutput]
    evaluate: Callable[[TrainState, Batch], Metrics]
    evaluate_partial: Callable[[TrainState, Batch | None, Batch], Metrics]
    batch: Batch
    placements: TrainState
    scanned: Mapping[int, frozenset[int]]
    spec: StepSpec
    whole_init: Callable[..., TrainState]
    layout: StateLayout
    compiler_options: CompilerOptions
    averaged_state: tuple[str, ...]

    @property
    def state(self) -> TrainState:
        """The abstract state, with shardings: padded shapes, as stored; None for what is in files."""
        return self.layout.state

    @property
    def whole(self) -> TrainState:
        """The abstract state with what is in files, which then lies in host memory; else the same as `state`."""
        return self.layout.whole

    @property
    def host_budget(self) -> Budget:
        """What offloading takes of the host, for each device."""
        return self.layout.budget

    @cached_property
    def step(self) -> jax.stages.Wrapped:
        """`step(state, batch) -> (state, metrics)`; jitted, the old state's memory is reused.

        Raises:
            OffloadError: the optimizer is on NVMe, so that a step changes files and is no pure function.
        """
        if self.host_budget.in_files:
            raise OffloadError(
                "with the optimizer on NVMe (zero_optimization.offload_optimizer) a step changes files, which a pure "
                "function cannot; use jzero.initialize, whose engine does."
            )
        program = train_step(self.spec)

        def step(state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
            out = program(state, batch)
            return out.state, out.metrics

        return jax.jit(
            step,
            donate_argnums=0,
            out_shardings=(self.layout.step_shardings[0], replicated(self.spec.mesh)),
            compiler_options=dict(self.compiler_options),
        )

    def open_store(self) -> StateStore:
        """The state as an engine holds it; opens files if some of it is on NVMe."""
        return self.spec.offload.open_store(self, self.layout)


def build_functional(
    *,
    model: object,
    loss_fn: LossFn,
    config: ResolvedConfig,
    sample_batch: Batch,
    mesh: Mesh,
    optimizer: optax.GradientTransformation | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Trainable | Mask | None = None,
) -> Functional:
    """Builds the functions of a run.

    Args:
        model: see `jzero.flax.adapter.adapt`; or what `adapted` gave, which is traced anew only for new shapes.
        loss_fn: see `jzero.flax.adapter.adapt`.
        config: a resolved configuration.
        sample_batch: a pytree whose leaves have leading dimension `train_batch_size`; only shapes and dtypes are read.
        mesh: from `jzero.make_mesh`.
        optimizer: an optax transformation in place of the configuration's `optimizer`, without gradient clipping.
        schedule: applied steps -> learning rate, in place of the configuration's `scheduler`.
        trainable: which parameters to train: a function of the dotted name, a type of NNX variable, or a pytree of
            bool like the parameters. All by default. The others get no optimizer state and no gradients.

    Raises:
        JzeroError: whatever does not fit, in one sentence.
    """
    _check_mesh(config, mesh)
    batch = shapes.batch_shapes(sample_batch, config, mesh)
    local_batch = shapes.local_shapes(batch, n_data_shards(mesh))
    pure_model, dtypes = adapted(model, loss_fn, config), precision_of(config)
    params, model_state = shapes.abstract_model(pure_model, dtypes, local_batch)
    mask = shapes.trainable_mask(params, trainable, pure_model.types)
    dtypes.check(params, local_batch)
    traced = mesh, params, model_state, local_batch
    scanned = shapes.scanned_by_loops(pure_model, dtypes, *traced)
    dtypes = with_targets(pure_model, dtypes, *traced)
    placements, casts = _placements(config, mesh, params, scanned), dtypes.casts(params)
    chosen = _optimizer(config, optimizer, schedule, shapes.loop_dims(params, mask, scanned))

    trained, trained_placements = split(params, mask)[0], split(placements, mask)[0]
    opt_state = jax.eval_shape(lambda trained: chosen.transformation.init(dtypes.optimized(trained)), trained)
    fixed = OptimizerLayout(
        chosen.transformation,
        config.gradient_clipping,
        placements,
        place_like_params(opt_state, trained, trained_placements),
        mask,
        casts,
        dtypes.param_dtype,
        mesh,
    )
    plan, two_level = stage_plan(config.zero_optimization.stage), _two_level(config, mesh)
    spec = StepSpec(
        model=pure_model,
        config=config,
        plan=plan,
        precision=dtypes,
        mesh=mesh,
        placements=placements,
        trainable=mask,
        casts=casts,
        schedule=chosen.learning_rate,
        momentum=chosen.momentum,
        offload=offload_for(config, fixed, trained, opt_state, persists_small_leaves=plan.persists_small_leaves),
        two_level=two_level,
        first_uses=shapes.order_of_use(pure_model, dtypes, *traced) if two_level else (),
    )
    averaged = averaged_state(pure_model, dtypes, *traced)
    return _compiled(spec, _new_state(spec, fixed, local_batch), batch, scanned, averaged)


def _compiled(
    spec: StepSpec,
    new: NewState,
    batch: Batch,
    scanned: Mapping[int, frozenset[int]],
    averaged_state: tuple[str, ...],
) -> Functional:
    """The jitted functions; nothing is compiled before it is called."""
    layout = spec.offload.place(new, spec.config.gradient_accumulation_steps)
    state_shardings, deferred = layout.step_shardings
    everywhere, born = replicated(spec.mesh), jax.tree.map(lambda x: x.sharding, layout.state)
    options = compiler_options(spec.mesh, spec.config, spec.precision, shapes.layer_size(spec.placements, scanned))
    return Functional(
        init=jax.jit(layout.init, out_shardings=born),
        init_over=jax.jit(layout.init, out_shardings=born, donate_argnums=1),
        program=jax.jit(
            train_step(spec),
            donate_argnums=0 if layout.donates else (),
            out_shardings=StepOutput(state_shardings, everywhere, deferred),  # pyright: ignore[reportArgumentType]
            compiler_options=options,
        ),
        evaluate=jax.jit(eval_step(spec), out_shardings=everywhere, compiler_options=options),
        evaluate_partial=jax.jit(partial_eval_step(spec), out_shardings=everywhere, compiler_options=options),
        batch=batch,
        placements=new.placements,
        scanned=scanned,
        spec=spec,
        whole_init=new.init,
        layout=layout,
        compiler_options=options,
        averaged_state=averaged_state,
    )


def _check_mesh(config: ResolvedConfig, mesh: Mesh) -> None:
    zero, n_shards = config.zero_optimization, mesh.shape["shard"]
    for name, group, may_be_more in (
        ("mics_shard_size", zero.shard_group, False),
        ("zero_hpz_partition_size", zero.hpz_group, mesh.shape["replica"] == 1),
    ):
        if group is not None and group != n_shards and not (may_be_more and group > n_shards):
            raise ConfigError(
                f"`zero_optimization.{name}` = {group}, but the axis `shard` of the mesh has {n_shards} devices; pass "
                "make_mesh(replica=...) that fits, or no mesh."
            )


def _placements(
    config: ResolvedConfig, mesh: Mesh, params: Params, scanned: Mapping[int, frozenset[int]]
) -> Placements:
    """Which dimension of each parameter is sharded, as the stage has it."""
    zero = config.zero_optimization
    plan, n_groups = stage_plan(zero.stage), mesh.shape["replica"] if _two_level(config, mesh) else 1
    return place_all(
        params,
        mesh.shape["shard"] * n_groups if plan.shards_state else 1,
        replicate_below=zero.stage3_param_persistence_threshold if plan.persists_small_leaves else SMALL_LEAF_ELEMENTS,
        unshardable_dims=scanned,
        shard_single=zero.offloads_params or zero.swaps_optimizer,
        n_groups=n_groups,
    )


def _two_level(config: ResolvedConfig, mesh: Mesh) -> bool:
    """Whether the state is divided over groups of devices too: one group has nothing to send to others."""
    return config.asks_two_levels and mesh.shape["replica"] > 1


def _optimizer(
    config: ResolvedConfig,
    given: optax.GradientTransformation | None,
    schedule: optax.Schedule | None,
    parameters: Mapping[str, frozenset[int]],
) -> Optimizer:
    """The configuration's optimizer, unless one is given."""
    if given is None:
        return build_optimizer(config, schedule=schedule, parameters=parameters)
    if config.jzero.param_groups:
        raise ConfigError(
            "jzero.param_groups is for the configuration's `optimizer`, and another one was passed as `optimizer=`; "
            "use optax.masked there, or remove the key."
        )
    return Optimizer(given, schedule)


def _new_state(spec: StepSpec, fixed: OptimizerLayout, local_batch: Batch) -> NewState:
    """How a new state is made; only the shapes of `local_batch` matter."""
    dtypes = spec.precision

    def init_state(seed: jax.Array, given_params: Params | None = None) -> TrainState:
        key = jax.random.key(seed)
        with traced_for(target_of(spec.mesh)):
            made, state = spec.model.init(key, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), local_batch))
        if given_params is not None:
            given_params = unpad(given_params, fixed.placements)
            made = jax.tree.map(lambda x, like: jnp.asarray(x).astype(like.dtype), given_params, made)
        master = dtypes.master_params(made)
        opt_state = fixed.optimizer.init(dtypes.optimized(split(master, spec.trainable)[0]))
        return TrainState(
            params=pad(master, fixed.placements),
            opt_state=pad(opt_state, fixed.opt_placements),
            model_state=dtypes.state(state),
            loss_scale=init_loss_scale(spec.config),
            step=jnp.zeros((), jnp.int32),
            applied_steps=jnp.zeros((), jnp.int32),
            rng=jax.random.key_data(jax.random.fold_in(key, 1)),
        )

    true_state = jax.eval_shape(init_state, jnp.uint32(0))
    replicated_all = jax.tree.map(lambda x: Placement(tuple(x.shape)), true_state)
    placements = {**vars(replicated_all), "params": fixed.placements, "opt_state": fixed.opt_placements}
    return NewState(init_state, true_state, TrainState(**placements))
