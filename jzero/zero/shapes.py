"""What tracing a model tells before a step is built: shapes, what trains, and which dimensions loops walk along."""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jax.tree_util import KeyPath

from jzero.base.types import Batch, LossFn, Mask, ModelState, Params, Placements, PyTree
from jzero.config import Config, ResolvedConfig
from jzero.config.resolve.auto import hidden_size_of
from jzero.errors import BatchError, ModelError
from jzero.flax.adapter import adapt
from jzero.flax.model import Model, Outcome
from jzero.flax.rematerialise import remat
from jzero.flax.surroundings import fitted, place_in
from jzero.gather import first_uses, scanned_dims
from jzero.gather.trace.regions import inputs_on_host
from jzero.jaxpr import Program, every_equation, name_of, place_of, trace
from jzero.jaxpr.devices import SHAPES_ALONE, traced_for
from jzero.jaxpr.primitives import CALLBACKS, CUSTOM_PARTITIONING, FLASH_ATTENTION, LAPACK
from jzero.sharding.mesh import DATA_AXES, TENSOR_AXIS, shard_over_data
from jzero.sharding.placement import path_name
from jzero.sharding.trees import is_placement
from jzero.zero.batches import fitting
from jzero.zero.precision import Precision

_WHOLE_MESH_ONLY = {
    FLASH_ATTENTION: "cuDNN's attention",
    CUSTOM_PARTITIONING: "an operation with a partitioning of its own",
    **dict.fromkeys(CALLBACKS, "a callback to the host"),
}
"""Primitives that JAX only lowers where it divides every axis of the mesh itself."""

Trainable = Callable[[str], bool] | type[nnx.Variable]
"""Whether to train a parameter, by its dotted name; or which type of NNX variable to train, such as `nnx.LoRAParam`."""


def adapted(model: object, loss_fn: LossFn, config: Config) -> Model:
    """The model and its loss as pure functions, with what the configuration says of rematerialisation.

    Args:
        model: see `jzero.initialize`; what this function gave comes back as it is.
        loss_fn: see `jzero.initialize`.
        config: resolved or not.
    """
    if isinstance(model, Model):
        return model
    if config.jzero.remat:
        model = remat(model, config.jzero.remat.modules, config.jzero.remat.policy)
    pure = adapt(model, loss_fn)
    offloads = config.activation_checkpointing and config.activation_checkpointing.cpu_checkpointing
    # Under `jit` so that a loss is traced once for the search for loops, the step, and every setting of a plan.
    jitted = jax.jit(inputs_on_host(pure.apply) if offloads else pure.apply, static_argnums=4)
    return fitted(pure._replace(apply=jitted))


def model_width(model: Model, sample_batch: Batch) -> int | None:
    """The width of a model, which `"auto"` sizes of buckets derive from; None if it has no matrices.

    Args:
        model: from `adapted`.
        sample_batch: see `jzero.initialize`; the model is traced with its shapes.
    """
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jax.dtypes.canonicalize_dtype(x.dtype)), sample_batch
    )
    with traced_for(SHAPES_ALONE):
        params, _ = jax.eval_shape(model.init, jax.eval_shape(jax.random.key, 0), batch)
    return hidden_size_of(x.shape for x in jax.tree.leaves(params))


def batch_shapes(sample_batch: Batch, config: ResolvedConfig, mesh: Mesh) -> Batch:
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
        if isinstance(x, np.ndarray):
            fitting(x, dtype, f"sample_batch leaf {path_name(path) or '(the batch itself)'}")
        return jax.ShapeDtypeStruct((n_micro, total // n_micro, *x.shape[1:]), dtype, sharding=sharding)

    return jax.tree_util.tree_map_with_path(reshaped, sample_batch)


def local_shapes(batch: Batch, n_shards: int) -> Batch:
    """The part of one micro-batch that one device sees."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[1] // n_shards, *x.shape[2:]), x.dtype), batch)


def abstract_model(model: Model, dtypes: Precision, local_batch: Batch) -> tuple[Params, ModelState]:
    """Shapes of the master parameters and of the model state."""

    def init(key, batch):
        params, model_state = model.init(key, batch)
        return dtypes.master_params(params), dtypes.state(model_state)

    with traced_for(SHAPES_ALONE):
        params, model_state = jax.eval_shape(init, jax.eval_shape(jax.random.key, 0), local_batch)
    if not jax.tree.leaves(params):
        raise ModelError(
            "the model has no parameters (nnx.Param, or the collection 'params' in Linen), so nothing to train."
        )
    _check_names(params, "parameters")
    _check_names(model_state, "parts of the model's state")
    return params, model_state


def _check_names(tree: PyTree, what: str) -> None:
    """Refuses leaves that a pattern, a checkpoint or an export could not tell from each other by their names."""
    seen: dict[str, KeyPath] = {}
    for path, _ in jax.tree_util.tree_leaves_with_path(tree):
        name = path_name(path).replace("/", ".")
        if name in seen:
            keys = " and ".join(jax.tree_util.keystr(p) for p in (seen[name], path))
            raise ModelError(
                f"two {what} have the name {name!r}, at {keys}: dots and slashes divide the names of nested ones; "
                "rename one of them."
            )
        seen[name] = path


def trainable_mask(params: Params, trainable: Trainable | Mask | None, types: Mapping[str, type]) -> Mask:
    """A pytree of bool like the parameters; integer leaves cannot be trained.

    Args:
        params: shapes of the parameters.
        trainable: see `jzero.initialize`.
        types: see `Model`.
    """
    if isinstance(trainable, type):
        chosen = {name for name, kind in types.items() if issubclass(kind, trainable)}
        if not chosen:
            kinds = ", ".join(sorted({kind.__name__ for kind in types.values()})) or "no NNX variables"
            raise ModelError(f"trainable is {trainable.__name__}, but no parameter is of that type; there are {kinds}.")
        mask = jax.tree_util.tree_map_with_path(lambda path, _: path_name(path) in chosen, params)
    elif callable(trainable):
        mask = jax.tree_util.tree_map_with_path(lambda path, _: bool(trainable(path_name(path))), params)
    elif trainable is None:
        mask = jax.tree.map(lambda _: True, params)
    elif jax.tree.structure(trainable) == jax.tree.structure(params):
        mask = jax.tree.map(bool, trainable)
    else:
        raise ModelError(
            "trainable must be a function of a parameter's name, a type of NNX variable or a pytree of bool like the "
            "parameters."
        )
    mask = jax.tree.map(lambda wanted, x: wanted and jnp.issubdtype(x.dtype, jnp.inexact), mask, params)
    if not any(jax.tree.leaves(mask)):
        names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
        raise ModelError(f"no parameter is trainable; the model has {', '.join(names[:5])}{', …' * (len(names) > 5)}.")
    return mask


def scanned_by_loops(
    model: Model, dtypes: Precision, mesh: Mesh, params: Params, model_state: ModelState, local_batch: Batch
) -> Mapping[int, frozenset[int]]:
    """Traces the loss once, inside `shard_map` so that it may name mesh axes, to find what its loops walk along."""
    found: dict[int, frozenset[int]] = {}

    def traced(params, model_state, batch, key):
        return model.apply(dtypes.computed(params), model_state, dtypes.inputs(batch), key, True)

    def probe(params, model_state, batch, key):
        def loss(params, model_state, batch, key):
            return model.apply(params, model_state, batch, key, True)

        found.update(scanned_dims(loss, dtypes.computed(params), model_state, dtypes.inputs(batch), key))
        return ()

    spec = PartitionSpec()
    arguments = params, model_state, local_batch, jax.eval_shape(jax.random.key, 0)
    try:
        jax.eval_shape(shard_over_data(probe, mesh, spec, spec), *arguments)
    except (TypeError, ValueError, AssertionError) as error:
        if dtypes.compute is None or jnp.dtype(dtypes.compute).name not in str(error):
            raise
        said = " ".join(filter(None, str(error).split("------")[0].splitlines()[:4]))
        raise _not_in_16_bits(dtypes, said, place_in(error)) from error
    whole_mesh, in_16_bits = mesh.shape[TENSOR_AXIS] == 1, dtypes.compute is not None
    if in_16_bits or not whole_mesh:
        loss = jax.make_jaxpr(shard_over_data(traced, mesh, spec, spec))(*arguments)
        if in_16_bits:
            _check_linear_algebra(loss, dtypes)
        if not whole_mesh:
            _check_left_to_compiler(loss, mesh)
    return found


def traced_loss(
    model: Model,
    dtypes: Precision,
    mesh: Mesh | AbstractMesh,
    params: Params,
    model_state: ModelState,
    local_batch: Batch,
    result: Callable[[Outcome], PyTree] = lambda outcome: outcome.loss,
) -> Program:
    """The jaxpr of one device's loss: of parameters as they last, model state, rows and a key, leaf by leaf.

    Args:
        model: from `adapted`.
        dtypes: of the run.
        mesh: whose axes the loss may name.
        params: abstract.
        model_state: abstract.
        local_batch: abstract rows of one device.
        result: what of the outcome is computed.
    """
    found: list[Program] = []

    def probe(params, model_state, batch, key):
        def loss(params, model_state, batch, key):
            return result(model.apply(dtypes.computed(params), model_state, dtypes.inputs(batch), key, True))

        found.append(trace(loss, params, model_state, batch, key)[0])
        return ()

    spec, key = PartitionSpec(), jax.eval_shape(jax.random.key, 0)
    over_mesh = shard_over_data(probe, mesh, spec, spec)  # pyright: ignore[reportArgumentType]
    jax.eval_shape(over_mesh, params, model_state, local_batch, key)
    return found[0]


def order_of_use(
    model: Model, dtypes: Precision, mesh: Mesh, params: Params, model_state: ModelState, local_batch: Batch
) -> tuple[int, ...]:
    """The indices of the parameters in the order in which the loss first uses them."""
    found: list[int] = []

    def probe(params, model_state, batch, key):
        def loss(params, model_state, batch, key):
            return model.apply(params, model_state, batch, key, True)

        found.extend(first_uses(loss, dtypes.computed(params), model_state, dtypes.inputs(batch), key))
        return ()

    spec, key = PartitionSpec(), jax.eval_shape(jax.random.key, 0)
    jax.eval_shape(shard_over_data(probe, mesh, spec, spec), params, model_state, local_batch, key)
    return tuple(found)


def _not_in_16_bits(dtypes: Precision, said: str, place: str) -> ModelError:
    """What to say of an operation that does not take the dtype of a run."""
    return ModelError(
        f"the loss cannot be computed in {jnp.dtype(dtypes.compute).name}, as the configuration has it: {said} "
        f"({place}). Cast to float32 in front of that operation, or name what comes in front of it in "
        '`jzero.keep_fp32`: parameters, or leaves of the batch as "batch.x".'
    )


def _check_linear_algebra(loss: Program, dtypes: Precision) -> None:
    """Refuses what no library computes in 16 bits, which JAX says only when it compiles."""
    place = "somewhere"
    for eqn, _, _ in every_equation(loss):
        place = place_of(eqn) or place  # functions of JAX's own are traced to equations from no file, and come next
        if name_of(eqn) in LAPACK and any(v.aval.dtype == dtypes.compute for v in eqn.invars):
            raise _not_in_16_bits(dtypes, f"{name_of(eqn)} takes float32 and wider", place)


def _check_left_to_compiler(loss: Program, mesh: Mesh) -> None:
    """Refuses what JAX cannot lower where the compiler divides an axis, and would fail at in its depths."""
    for eqn, _, _ in every_equation(loss):
        if what := _WHOLE_MESH_ONLY.get(name_of(eqn)):
            place = f" ({where})" if (where := place_of(eqn)) else ""
            raise ModelError(
                f"the loss contains {what}{place}, which JAX can only take where no axis of the mesh is "
                f"left to the compiler, and the axis `{TENSOR_AXIS}` has {mesh.shape[TENSOR_AXIS]} devices: make the "
                "mesh with tensor=1, or do without; jzero.attention takes another path there."
            )


def layer_size(placements: Placements, scanned: Mapping[int, frozenset[int]]) -> int:
    """Elements that one iteration of the innermost loops over layers gathers."""
    flat = jax.tree.leaves(placements, is_leaf=is_placement)
    return sum(
        math.prod(n for d, n in enumerate(flat[i].shape) if d not in dims)
        for i, dims in scanned.items()
        if flat[i].dim is not None
    )


def loop_dims(params: Params, mask: Mask, scanned: Mapping[int, frozenset[int]]) -> Mapping[str, frozenset[int]]:
    """Dotted name of each trainable parameter -> the dimensions that a loop over layers walks along."""
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    return {
        name: scanned.get(i, frozenset())
        for i, (name, wanted) in enumerate(zip(names, jax.tree.leaves(mask), strict=True))
        if wanted
    }
