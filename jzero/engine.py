"""The engine: the object a user holds. It owns the live state and hands batches to the compiled functions."""

import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero import checkpoint
from jzero.config import Config
from jzero.errors import BatchError, ConfigError, LossScaleError, ModelError
from jzero.explain import Explanation, explain
from jzero.functional import Functional, Trainable, functional
from jzero.layout import path_name
from jzero.mesh import DATA_AXES, make_mesh, n_data_shards
from jzero.stages import StagePlan
from jzero.state import TrainState, unpad


def initialize(
    *,
    model: Any,
    loss_fn: Callable,
    config: "str | os.PathLike[str] | Mapping[str, Any] | Config",
    sample_batch: Any,
    optimizer: optax.GradientTransformation | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Trainable | Any | None = None,
    params: Any | None = None,
    mesh: Mesh | None = None,
    seed: int = 0,
) -> "Engine":
    """Makes an engine: resolves the configuration, lays the model out over the mesh and creates its state, sharded.

    Args:
        model: a Flax Linen module; a function `rngs -> NNX module`; or, without Flax, any object with
            `init(key, batch) -> params`. It is called under `jit`, so no device ever holds the whole model at stages 1
            to 3.
        loss_fn: `loss_fn(model, batch)`, without Flax `loss_fn(params, batch)`; it returns a scalar (or
            `jzero.Mean`), or that and a dict of scalar
            metrics. With a third parameter named `train` it is told whether this is a training step.
        config: a DeepSpeed configuration: a path, a mapping or a `jzero.Config`.
        sample_batch: a batch as `train_batch` takes it; only its shapes and dtypes are read.
        optimizer: an optax transformation in place of the configuration's optimizer, without gradient clipping.
        schedule: applied steps -> learning rate, in place of the configuration's scheduler.
        trainable: which parameters to train: a function of the dotted name, or a pytree of bool. All by default.
        params: initial parameters, as `engine.params` shows them, in place of the model's own initialisation.
        mesh: from `jzero.make_mesh`; all devices on the `shard` axis by default.
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
    mesh = make_mesh() if mesh is None else mesh
    resolved = Config.load(config).resolve(world=n_data_shards(mesh))
    _agree_over_processes(resolved, seed)
    fns = functional(
        model=model,
        loss_fn=loss_fn,
        config=resolved,
        sample_batch=sample_batch,
        mesh=mesh,
        optimizer=optimizer,
        schedule=schedule,
        trainable=trainable,
    )
    if params is not None:
        params = _like_model(params, fns.placements.params)
    state = fns.init(np.uint32(seed)) if params is None else fns.init(np.uint32(seed), params)
    return Engine(fns, state)


class Engine:
    """A model in training: live state, and the compiled functions that change it.

    Attributes:
        functional: the pure functions and everything fixed about the run.
        state: the live `TrainState`; its arrays are in stored (padded) shapes.
    """

    def __init__(self, functional: Functional, state: TrainState):
        self.functional = functional
        self.state = state
        self._scaler_exhausted: jax.Array | None = None

    @property
    def config(self) -> Config:
        """The resolved configuration."""
        return self.functional.recipe.config

    @property
    def mesh(self) -> Mesh:
        """The devices, with the axes `replica`, `shard` and `tensor`."""
        return self.functional.recipe.mesh

    @property
    def stage_plan(self) -> StagePlan:
        """What the ZeRO stage means."""
        return self.functional.recipe.plan

    @property
    def placements(self) -> Any:
        """How each parameter lies over the mesh: a pytree of `Placement`s like `params`."""
        return self.functional.placements.params

    @property
    def params(self) -> Any:
        """The master parameters as global arrays of their true shapes: the live arrays, or copies of padded ones."""
        return unpad(self.state.params, self.placements)

    def explain(self) -> Explanation:
        """What a training step does with each parameter: where it lies, when it is gathered, and what travels.

        Returns:
            One entry per parameter; `.table()` for a terminal, `.to_json()` for a machine.

        Example:
            `rich.print(engine.explain().table())`
        """
        return explain(self.functional)

    def train_batch(self, batch: Any) -> dict[str, jax.Array]:
        """Takes one training step.

        Args:
            batch: a pytree of arrays whose leading dimension is `train_batch_size`, or this process's part of it. Row
                `i` belongs to micro-batch `i // (rows / gradient_accumulation_steps)`.

        Returns:
            Scalars, still on the devices: `loss` (mean over the whole batch), `grad_norm` (before clipping),
            `learning_rate` and `loss_scale` (those this step used), `overflow` (this step was skipped),
            `skipped_steps`, `applied_steps`, and what the loss returned.

        Raises:
            BatchError: if the batch has other shapes than the sample. Nothing has started then: this process may come
                back with a better batch, while the others wait for it.
            LossScaleError: if the previous step overflowed at the smallest loss scale.
        """
        batch = self._place(batch)
        if self._scaler_exhausted is not None and bool(self._scaler_exhausted):
            raise LossScaleError(
                f"fp16 gradients overflow at the smallest loss scale ({float(self.state.loss_scale.scale):g}, "
                f"fp16.min_loss_scale) at step {int(self.state.step)}: the model diverges or does not fit fp16; "
                "lower the learning rate or use bf16."
            )
        self.state, metrics = self.functional.step(self.state, batch)
        # Read one step late, so that the devices never wait for the host. A copy, because the next step reuses the
        # state's memory.
        self._scaler_exhausted = jnp.copy(self.state.loss_scale.exhausted) if self._scales_dynamically else None
        return metrics

    def eval_batch(self, batch: Any) -> dict[str, jax.Array]:
        """Evaluates the loss without training.

        Args:
            batch: a pytree like a training batch; its leading dimension must divide by the number of data shards.

        Returns:
            `loss` and what the loss returned, averaged over the batch.
        """
        n_shards = n_data_shards(self.mesh) // jax.process_count()
        sharding = NamedSharding(self.mesh, PartitionSpec(DATA_AXES))

        def place(path: Any, x: Any) -> jax.Array:
            x = np.asarray(x)
            if not x.ndim or x.shape[0] % n_shards or not x.shape[0]:
                raise BatchError(
                    f"eval_batch leaf {path_name(path) or '(the batch itself)'} has shape {x.shape}; "
                    f"its leading dimension must be a multiple of the {n_shards} data shards of this process."
                )
            return jax.make_array_from_process_local_data(sharding, x)

        return self.functional.evaluate(self.state, jax.tree_util.tree_map_with_path(place, batch))

    def save_checkpoint(self, path: "str | os.PathLike[str]", extra: dict[str, Any] | None = None) -> None:
        """Writes the whole state; every process must call it.

        Args:
            path: a folder to create, or an earlier checkpoint to replace.
            extra: JSON-serialisable facts to store beside the state, such as a data position.

        Raises:
            CheckpointError: if it cannot be written.
        """
        shapes = {path_name(p): list(x.shape) for p, x in jax.tree_util.tree_leaves_with_path(self.placements)}
        checkpoint.save(
            path,
            self.state,
            {"config": self.config.model_dump(exclude_none=True), "shapes": shapes, "extra": extra or {}},
        )

    def load_checkpoint(self, path: "str | os.PathLike[str]") -> dict[str, Any]:
        """Reads a state back; every process must call it.

        Args:
            path: what `save_checkpoint` wrote.

        Returns:
            The `extra` that was saved.

        Raises:
            CheckpointError: if there is no complete checkpoint, or it belongs to another model.
        """
        self.state, metadata = checkpoint.load(path, self.functional.state)
        self._scaler_exhausted = None
        return metadata["extra"]

    @property
    def _scales_dynamically(self) -> bool:
        return self.config.precision == "fp16" and not self.config.fp16.loss_scale

    def _place(self, batch: Any) -> Any:
        """Checks a training batch and spreads it over the mesh, `[rows, ...]` -> `[accumulation, micro-batch, ...]`."""
        expected = self.functional.batch
        if jax.tree.structure(batch) != jax.tree.structure(expected):
            raise BatchError(
                f"the batch has the structure {jax.tree.structure(batch)}; "
                f"the sample had {jax.tree.structure(expected)}."
            )
        n_micro = self.config.gradient_accumulation_steps
        rows = self.config.train_batch_size // jax.process_count()

        def place(path: Any, x: Any, like: Any) -> jax.Array:
            x = np.asarray(x)
            if x.shape != (rows, *like.shape[2:]):
                raise BatchError(
                    f"batch leaf {path_name(path) or '(the batch itself)'} has shape {x.shape}; expected "
                    f"{(rows, *like.shape[2:])}: train_batch_size {self.config.train_batch_size}"
                    f"{f' over {jax.process_count()} processes' * (jax.process_count() > 1)}, as in the sample."
                )
            local = x.reshape(n_micro, rows // n_micro, *x.shape[1:])
            return jax.make_array_from_process_local_data(like.sharding, local, like.shape)

        return jax.tree_util.tree_map_with_path(place, batch, expected)


def _like_model(params: Any, placements: Any) -> Any:
    """Checks given parameters against the model's, by name, and brings them into the model's tree."""
    expected = {path_name(p): x.shape for p, x in jax.tree_util.tree_leaves_with_path(placements)}
    by_name = {path_name(p): x for p, x in jax.tree_util.tree_leaves_with_path(params)}
    given = {name: tuple(np.shape(x)) for name, x in by_name.items()}
    if given != expected:
        wrong = [
            f"{name}: {given.get(name, 'missing')}, expected {expected.get(name, 'no such parameter')}"
            for name in sorted(given.keys() | expected.keys())
            if given.get(name) != expected.get(name)
        ]
        raise ModelError(f"params do not fit the model in {len(wrong)} leaves: {'; '.join(wrong[:5])}.")
    return jax.tree_util.tree_map_with_path(lambda path, _: by_name[path_name(path)], placements)


def _agree_over_processes(config: Config, seed: int) -> None:
    """Refuses processes that were started with different settings: they would hang or silently diverge."""
    if jax.process_count() == 1:
        return
    digest = zlib.crc32(repr((config, seed)).encode())
    digests = multihost_utils.process_allgather(np.uint32(digest)).ravel().tolist()
    if len(set(digests)) > 1:
        other = next(i for i, d in enumerate(digests) if d != digests[0])
        raise ConfigError(f"process {other} has another configuration or seed than process 0; start all with the same.")
