"""A tiny model with leaves of every kind, batches for it, and the single-device loop that the core must equal."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import jzero

D_IN, D_HIDDEN, D_OUT = 129, 131, 8


class Net(nnx.Module):
    """Over 8 shards: one leaf padded, others divided on either dimension, whole, a scalar and an empty one."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(D_IN, D_HIDDEN, rngs=rngs)  # 16899 elements that neither 2, 6 nor 8 divides
        self.second = nnx.Linear(D_HIDDEN, D_OUT, rngs=rngs)
        self.gain = nnx.Param(jnp.asarray(1.5, jnp.float32))
        self.empty = nnx.Param(jnp.zeros((0, 3), jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.second(jnp.tanh(self.first(x))) * self.gain[...] + self.empty[...].sum()


def make_net(rngs: nnx.Rngs) -> Net:
    return Net(rngs)


def squared_error(model: Any, batch: Any) -> jax.Array:
    return ((model(batch["x"]) - batch["y"]).astype(jnp.float32) ** 2).mean()


def batches(n: int, rows: int, d_in: int = D_IN, d_out: int = D_OUT) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(rows)
    floats = lambda *shape: random.standard_normal(shape, np.float32)
    return [{"x": floats(rows, d_in), "y": floats(rows, d_out)} for _ in range(n)]


def config(stage: int, rows: int, accumulation: int = 1, **sections: Any) -> dict[str, Any]:
    """A configuration without clipping, in which stage 3 shards small leaves too."""
    return {
        "train_batch_size": rows,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        **sections,
    }


def mesh_of(n_devices: int, replica: int = 1) -> jax.sharding.Mesh:
    return jzero.make_mesh(jax.devices()[:n_devices], replica=replica)


def build(
    stage: int,
    batch: Any,
    *,
    model: Any = make_net,
    loss_fn: Callable = squared_error,
    n_devices: int = 8,
    replica: int = 1,
    accumulation: int = 1,
    sections: dict[str, Any] | None = None,
    **options: Any,
) -> jzero.Engine:
    rows = jax.tree.leaves(batch)[0].shape[0]
    return jzero.initialize(
        model=model,
        loss_fn=loss_fn,
        config=config(stage, rows, accumulation, **(sections or {})),
        sample_batch=batch,
        mesh=mesh_of(n_devices, replica),
        **options,
    )


def restart(engine: jzero.Engine, seed: int = 0) -> jzero.Engine:
    """The same compiled engine at its first step."""
    engine.state = engine.functional.init(np.uint32(seed))
    return engine


class Run(NamedTuple):
    losses: list[float]
    norms: list[float]
    params: Any


def train(engine: jzero.Engine, steps: list[Any]) -> Run:
    metrics = [engine.train_batch(batch) for batch in steps]
    return Run([float(m["loss"]) for m in metrics], [float(m["grad_norm"]) for m in metrics], host(engine.params))


def train_alone(
    steps: list[Any],
    params: Any,
    optimizer: optax.GradientTransformation,
    *,
    model: Callable = make_net,
    loss_fn: Callable = squared_error,
) -> Run:
    """Plain JAX and optax on one device: what every stage, mesh and accumulation must give."""
    graphdef, abstract, rest = nnx.split(model(nnx.Rngs(0)), nnx.Param, ...)
    treedef = jax.tree.structure(abstract)

    def loss(params: Any, batch: Any) -> jax.Array:
        return loss_fn(nnx.merge(graphdef, treedef.unflatten(jax.tree.leaves(params)), rest, copy=True), batch)

    @jax.jit
    def step(params: Any, opt_state: Any, batch: Any) -> tuple[Any, Any, jax.Array, jax.Array]:
        value, grads = jax.value_and_grad(loss)(params, batch)
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, value, optax.tree.norm(grads)

    params = jax.tree.map(jnp.asarray, params)
    opt_state, losses, norms = optimizer.init(params), [], []
    for batch in steps:
        params, opt_state, value, norm = step(params, opt_state, batch)
        losses.append(float(value))
        norms.append(float(norm))
    return Run(losses, norms, host(params))


def host(tree: Any) -> Any:
    """Copies on the host: a live state is given away to the next step."""
    return jax.tree.map(lambda x: np.array(x), tree)


def assert_equal_runs(actual: Run, expected: Run, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    np.testing.assert_allclose(actual.losses, expected.losses, rtol=rtol)
    np.testing.assert_allclose(actual.norms, expected.norms, rtol=rtol)
    assert_close(actual.params, expected.params, rtol=rtol, atol=atol)


def assert_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=atol), actual, expected)


def count_primitives(jaxpr: Any, *names: str) -> int:
    """Counts equations of some primitives in a jaxpr and in everything inside it."""
    total = 0
    for eqn in jaxpr.eqns:
        total += eqn.primitive.name in names
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            total += count_primitives(inner, *names) if hasattr(inner, "eqns") else 0
    return total
