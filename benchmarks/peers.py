"""What jzero is measured against: the training step that one writes by hand with `jit` and shardings, for the same GPT.

One function serves both peers, because they differ in nothing but where the state lies: replicated it is data
parallelism, divided it is what is known as FSDP by annotation. All collectives are the compiler's choice.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jzero.layout import place_all
from jzero.mesh import DATA_AXES
from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.losses import next_token_loss
from jzero.state import is_placement, place_like_params, shardings

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


def hand_written(
    config: GPTConfig, mesh: Mesh, rows: int, *, sharded: bool, compute_dtype: Any = None
) -> tuple[Callable, Any, Any]:
    """Builds the peer.

    Args:
        config: the GPT.
        mesh: the devices.
        rows: sequences in a batch.
        sharded: divide parameters and moments over the `shard` axis instead of replicating them.
        compute_dtype: what parameters are cast to in the loss; None for fp32.

    Returns:
        The jitted `step(state, batch) -> (state, loss)`, its jitted `init() -> state`, and the abstract (state, batch).
    """
    optimizer = optax.chain(optax.clip_by_global_norm(MAX_NORM), optax.adamw(LEARNING_RATE, weight_decay=0.01))
    graphdef = nnx.split(nnx.eval_shape(lambda: GPT(config, rngs=nnx.Rngs(0))))[0]

    def init() -> tuple[Any, Any]:
        params = nnx.split(GPT(config, rngs=nnx.Rngs(0)))[1]
        return params, optimizer.init(params)

    def loss(params: Any, batch: Any) -> jax.Array:
        if compute_dtype is not None:
            params = jax.tree.map(lambda x: x.astype(compute_dtype), params)
        return next_token_loss(nnx.merge(graphdef, params), batch)

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), value

    params, opt_state = jax.eval_shape(init)
    # The scanned dimension stays whole, as anyone would write it.
    stacked = {i: {0} for i, (path, _) in enumerate(jax.tree_util.tree_leaves_with_path(params)) if "'h'" in str(path)}
    placements = place_all(
        params, mesh.shape["shard"] if sharded else 1, undividable=stacked if config.scan_layers else None
    )
    opt_placements = place_like_params(opt_state, params, placements)
    state_shardings = shardings((placements, opt_placements), mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())
    abstract = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), (params, opt_state), state_shardings
    )
    tokens = jax.ShapeDtypeStruct(
        (rows, config.seq_len + 1), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec(DATA_AXES))
    )
    assert not any(p.padding for p in jax.tree.leaves(placements, is_leaf=is_placement)), "jit cannot pad"
    return (
        jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, everywhere)),
        jax.jit(init, out_shardings=state_shardings),
        (abstract, {"tokens": tokens}),
    )
