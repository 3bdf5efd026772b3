"""Where a run begins: a model, a loss and a configuration become an engine, or the pure functions under one."""

import logging
import zlib
from typing import NamedTuple, TypedDict, Unpack

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from jzero.base.types import Batch, Json, LossFn, Mask, ModelState, Params
from jzero.checkpoint.format.leaves import brief, by_name
from jzero.config import Config, ResolvedConfig
from jzero.config.config import Source
from jzero.engine import Engine
from jzero.errors import ConfigError
from jzero.flax.model import Model
from jzero.launch.agreement import agree, facts_of_process
from jzero.models.hf.load import HFWeights
from jzero.offload.host_budget import check_host_memory
from jzero.plan.search.auto import resolve_auto
from jzero.sharding.mesh import mesh_for, n_data_shards, outside_meshes
from jzero.sharding.placement import path_name
from jzero.sharding.trees import is_placement
from jzero.zero.build import Functional, build_functional
from jzero.zero.given import Given, given_like_model, with_model_state
from jzero.zero.published import read_published
from jzero.zero.shapes import Trainable, adapted, model_width


@outside_meshes
def initialize(
    *,
    model: object,
    loss_fn: LossFn,
    config: Source,
    sample_batch: Batch,
    optimizer: optax.GradientTransformation | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Trainable | Mask | None = None,
    params: Params | HFWeights | None = None,
    model_state: ModelState | None = None,
    mesh: Mesh | None = None,
    seed: int = 0,
) -> Engine:
    """Makes an engine: resolves the configuration, lays the model out over the mesh and creates its state, sharded.

    Args:
        model: a Flax Linen module; a function `rngs -> NNX module`; or, without Flax, any object with
            `init(key, batch) -> params`. It is called under `jit`, so no device ever holds the whole model at stages 1
            to 3.
        loss_fn: `loss_fn(model, batch)`, without Flax `loss_fn(params, batch)`; it returns a scalar (or
            `jzero.Mean`), or that and a dict of scalar
            metrics. With a third parameter named `train` it is told whether this is a training step.
        config: a DeepSpeed configuration: a path, a mapping or a `jzero.Config`. A stage or micro-batch of `"auto"` is
            chosen by a plan for these devices; `engine.config.notes` says which and why. These notes are
            logged too, at level INFO, unless a `jzero.Config` was given, which had them before.
        sample_batch: a batch as `train_batch` takes it; only its shapes and dtypes are read.
        optimizer: an optax transformation in place of the configuration's optimizer, without gradient clipping.
        schedule: applied steps -> learning rate, in place of the configuration's scheduler.
        trainable: which parameters to train: a function of the dotted name, a type of NNX variable such as
            `nnx.LoRAParam`, or a pytree of bool. All by default.
        params: initial parameters, as `engine.params` shows them, in place of the model's own initialisation; or all
            variables of the model in one tree, as Linen's `init` or `nnx.to_pure_dict(nnx.state(...))` has them; or the
            `weights` of `jzero.models.from_hf`, of which every process reads its own shards.
        model_state: what else lasts, such as `{"batch_stats": ...}`, in place of the model's own.
        mesh: from `jzero.make_mesh`; by default all devices on the `shard` axis, or MiCS's groups if the configuration
            has them.
        seed: of the initialisation and of every random stream.

    Returns:
        The engine.

    Raises:
        JzeroError: whatever does not fit, in one sentence.

    Example:
        >>> from flax import nnx
        >>> engine = initialize(
        ...     model=lambda rngs: nnx.Linear(4, 1, rngs=rngs),
        ...     loss_fn=lambda model, batch: ((model(batch["x"]) - batch["y"]) ** 2).mean(),
        ...     config={"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}},
        ...     sample_batch={"x": np.ones((8, 4), np.float32), "y": np.ones((8, 1), np.float32)},
        ... )
        >>> metrics = engine.train_batch({"x": np.ones((8, 4), np.float32), "y": np.ones((8, 1), np.float32)})
        >>> int(metrics["applied_steps"])
        1
    """
    if not 0 <= seed < 2**32:
        raise ConfigError(f"seed is {seed}; it must be at least 0 and below 2**32.")
    options: _Options = {"sample_batch": sample_batch, "optimizer": optimizer, "trainable": trainable}
    given = Config.load(config)
    agree({"seed": seed, **_what_is_given(given, sample_batch)})  # before anything that one process alone could refuse
    found = _resolve(model, loss_fn, given, mesh, **options)
    resolved, mesh = found.config, found.mesh
    if not isinstance(config, Config) and jax.process_index() == 0:
        for note in resolved.notes:
            logging.getLogger("jzero").info("%s", note)
    fns = build_functional(**found._asdict(), loss_fn=loss_fn, schedule=schedule, **options)
    if rounded := fns.spec.precision.rounded(fns.batch):
        logging.getLogger("jzero").info(
            "%s enters the loss in %s; `jzero.keep_fp32` keeps what it names.", ", ".join(rounded), resolved.precision
        )
    if targets := fns.spec.precision.targets:
        logging.getLogger("jzero").info(
            "%s enters the loss as it is, not in %s: no weight acts on it.", ", ".join(targets), resolved.precision
        )
    if resolved.asks_two_levels and not fns.spec.two_level and jax.process_index() == 0:
        logging.getLogger("jzero").info(
            "all %d devices are in one group, in which two levels are stage 3 as it is.", n_data_shards(mesh)
        )
    if fns.averaged_state:
        logging.getLogger("jzero").info(
            "the model's state %s depends on the rows of each device and is averaged over the devices after each step.",
            ", ".join(fns.averaged_state),
        )
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    check_host_memory(fns.host_budget, len(local), local[0].platform)
    published = params if isinstance(params, HFWeights) else None
    given = given_like_model(None if published else params, model_state, fns.placements, fns.whole)
    agree(_what_is_built(fns, given))
    store = fns.open_store()
    if published is None:
        state = store.init(np.uint32(seed), given.params)
    else:
        state = store.init_over(np.uint32(seed), read_published(fns, published))
    return Engine(fns, with_model_state(state, given.model_state), store)


@outside_meshes
def functional(
    *,
    model: object,
    loss_fn: LossFn,
    config: Source,
    sample_batch: Batch,
    optimizer: optax.GradientTransformation | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Trainable | Mask | None = None,
    mesh: Mesh | None = None,
) -> Functional:
    """Makes the pure functions under an engine, for those who write their own loops.

    Args:
        model: see `initialize`.
        loss_fn: see `initialize`.
        config: see `initialize`.
        sample_batch: see `initialize`.
        optimizer: see `initialize`.
        schedule: see `initialize`.
        trainable: see `initialize`.
        mesh: see `initialize`.

    Returns:
        Jitted `init(seed) -> state`, `step(state, batch) -> (state, metrics)` and `evaluate(state, batch) -> metrics`,
        and what is fixed about them.

    Raises:
        JzeroError: whatever does not fit, in one sentence.

    Example:
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> fns = functional(
        ...     model=lambda rngs: nnx.Linear(4, 1, rngs=rngs),
        ...     loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
        ...     config={"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.1}}},
        ...     sample_batch=np.ones((8, 4), np.float32),
        ... )
        >>> state, metrics = fns.step(fns.init(0), jnp.ones((1, 8, 4)))
        >>> int(state.step)
        1
    """
    options: _Options = {"sample_batch": sample_batch, "optimizer": optimizer, "trainable": trainable}
    found = _resolve(model, loss_fn, Config.load(config), mesh, **options)
    return build_functional(**found._asdict(), loss_fn=loss_fn, schedule=schedule, **options)


class _Options(TypedDict):
    """What resolving a configuration and building a run both take."""

    sample_batch: Batch
    optimizer: optax.GradientTransformation | None
    trainable: Trainable | Mask | None


class _Resolved(NamedTuple):
    """What a run is built of, with nothing left open."""

    model: Model
    config: ResolvedConfig
    mesh: Mesh


def _resolve(
    model: object, loss_fn: LossFn, config: Config, mesh: Mesh | None, **options: Unpack[_Options]
) -> _Resolved:
    """Fills every `"auto"`, makes the mesh and adapts the model."""
    given = resolve_auto(config, mesh=mesh, model=model, loss_fn=loss_fn, **options)
    mesh = mesh_for(given) if mesh is None else mesh
    adapted_model = adapted(model, loss_fn, given)
    width = lambda: model_width(adapted_model, options["sample_batch"])
    return _Resolved(adapted_model, given.resolve(world=n_data_shards(mesh), hidden_size=width), mesh)


def _what_is_given(config: Config, sample_batch: Batch) -> dict[str, Json]:
    """What processes must be given alike: with anything else they would hang, or silently diverge."""
    leaves = jax.tree_util.tree_leaves_with_path(sample_batch)
    arrays = {path_name(path) or "itself": x if hasattr(x, "dtype") else np.asarray(x) for path, x in leaves}
    return {
        **facts_of_process(),
        "sample_batch": {name: brief(x.shape, x.dtype) for name, x in arrays.items()},
        "config": config.model_dump(mode="json", exclude_none=True, warnings=False),
    }


def _what_is_built(fns: Functional, given: Given) -> dict[str, Json]:
    """What must have come of it alike, before it is placed on devices; of given leaves the values count too."""
    if jax.process_count() == 1:  # which spares it the checksums
        return {}
    checksums = lambda tree: {
        path_name(path): zlib.crc32(np.ascontiguousarray(x).data)
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
        if not _is_spread(x)
    }
    return {
        "config": fns.spec.config.model_dump(mode="json", warnings=False),
        "mesh": dict(fns.spec.mesh.shape),
        "the shape of": {name: str(list(place.shape)) for name, place in by_name(fns.placements, is_placement).items()},
        "trainable": {name: str(chosen) for name, chosen in by_name(fns.spec.trainable).items()},
        "the checksum of params": checksums(given.params),
        "the checksum of model_state": checksums(given.model_state),
    }


def _is_spread(x: object) -> bool:
    return isinstance(x, jax.Array) and not x.is_fully_addressable
