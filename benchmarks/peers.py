"""What jzero is measured against: the step that one writes by hand with `jit` and shardings, for the same model.

One function serves all peers, because they differ in little: state replicated is data parallelism, state divided is
what is known as FSDP by annotation, and with every weight constrained to be whole where it is used, FSDP by annotation
and constraints. All collectives are the compiler's choice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.config import Config
from jzero.flax.mean import as_means
from jzero.sharding.mesh import DATA_AXES
from jzero.sharding.placement import Placement, place_all
from jzero.sharding.trees import is_placement, place_like_params, replicated, shardings

LEARNING_RATE, MAX_NORM = 1e-3, 1.0


def deepspeed_config(stage: int, rows: int, precision: str, n_micro: int = 1) -> dict[str, Any]:
    """The configuration that makes jzero do the same work as `hand_written`."""
    return {
        "train_batch_size": rows,
        "gradient_accumulation_steps": n_micro,
        "gradient_clipping": MAX_NORM,
        "zero_optimization": {"stage": stage},
        "optimizer": {"type": "AdamW", "params": {"lr": LEARNING_RATE, "weight_decay": 0.01}},
        **({} if precision == "fp32" else {precision: {"enabled": True}}),
    }


class Peer(NamedTuple):
    """A training step and what it takes.

    Attributes:
        step: `step(state, batch) -> (state, loss)`, jitted; the old state's memory is reused.
        init: `init() -> state`, jitted.
        state: the abstract state, with shardings.
        batch: the abstract batch, with shardings.
    """

    step: Any
    init: Any
    state: Any
    batch: Any


def hand_written(
    model: Callable[[nnx.Rngs], nnx.Module],
    loss_fn: Callable,
    mesh: Mesh,
    batch: Any,
    *,
    sharded: bool,
    constrained_at_use: bool = False,
    stacked: str | None = None,
    compute_dtype: Any = None,
) -> Peer:
    """Builds the peer.

    Args:
        model: see `jzero.initialize`; NNX only.
        loss_fn: see `jzero.initialize`.
        mesh: the devices.
        batch: abstract arrays with leading dimension rows.
        sharded: divide parameters and moments over the `shard` axis, as jzero's stage 3 does, instead of replicating
            them.
        constrained_at_use: constrain each parameter to be replicated when the model takes it: inside of the loop over
            layers and of what is rematerialised.
        stacked: name of the module whose parameters a loop over layers walks along; that dimension stays whole, as
            anyone would write it.
        compute_dtype: what parameters and the batch's floats are cast to in the loss; None for fp32.
    """
    optimizer = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adamw(LEARNING_RATE, weight_decay=0.01))

    def make() -> nnx.Module:
        module = model(nnx.Rngs(0))
        if constrained_at_use:
            _constrain_at_use(module, mesh)
        return module

    graphdef = nnx.split(nnx.eval_shape(make), nnx.Param, ...)[0]

    def init() -> tuple[Any, Any, Any]:
        _, params, rest = nnx.split(make(), nnx.Param, ...)
        return params, rest, optimizer.init(params)

    def loss(params: Any, rest: Any, batch: Any) -> tuple[jax.Array, Any]:
        module = nnx.merge(graphdef, _cast(params, compute_dtype), rest, copy=True)
        module.train()
        # A function, which has nothing but logits: a loss by chunks would cut across the devices' tokens.
        (total, weight), _ = as_means(loss_fn(lambda *inputs: module(*inputs), _cast(batch, compute_dtype)))
        return total if weight is None else total / weight, nnx.state(module, nnx.Not(nnx.Param))

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, rest, opt_state = state
        (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params, rest, batch)
        with jax.numpy_dtype_promotion("standard"):  # optax mixes dtypes
            updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), rest, opt_state), value

    abstract = jax.eval_shape(init)
    state_shardings = _state_shardings(abstract, mesh, stacked, sharded)
    by_rows = NamedSharding(mesh, PartitionSpec(DATA_AXES))
    place = lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
    return Peer(
        step=jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, replicated(mesh))),
        init=jax.jit(init, out_shardings=state_shardings),
        state=jax.tree.map(place, abstract, state_shardings),
        batch=jax.tree.map(lambda x: place(x, by_rows), batch),
    )


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(dtype) if dtype and jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _state_shardings(abstract: Any, mesh: Mesh, stacked: str | None, sharded: bool) -> Any:
    """Places everything as jzero's stage 3 does, except that `jit` cannot pad: what nothing divides stays whole."""
    params, rest, opt_state = abstract
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    placements = place_all(
        params,
        mesh.shape["shard"] if sharded else 1,
        replicate_below=Config.load({"train_batch_size": 1}).zero_optimization.stage3_param_persistence_threshold,
        unshardable_dims={i: {0} for i, path in enumerate(paths) if stacked and f"'{stacked}'" in str(path)},
    )
    placements = jax.tree.map(lambda p: Placement(p.shape) if p.padding else p, placements, is_leaf=is_placement)
    whole = jax.tree.map(lambda x: Placement(tuple(x.shape)), rest)
    return shardings((placements, whole, place_like_params(opt_state, params, placements)), mesh)


def _constrain_at_use(module: nnx.Module, mesh: Mesh) -> None:
    """Gives the parameters a type that is constrained to be replicated whenever a layer reads it."""
    whole = replicated(mesh)

    class WholeAtUse(nnx.Param):
        def get_value(self, *, index: Any = ...) -> Any:
            value = super().get_value()
            if isinstance(value, jax.core.Tracer):
                value = jax.lax.with_sharding_constraint(value, whole)
            return value if index is ... else value[index]

    for _, part in nnx.iter_modules(module):
        for name, value in list(vars(part).items()):
            if type(value) is nnx.Param:
                setattr(part, name, WholeAtUse(nnx.Param.get_value(value)))
