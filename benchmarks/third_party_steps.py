"""Trains one third-party model at every stage and on one device; `third_party.py` runs it, a process for each model.

python benchmarks/third_party_steps.py bert
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jzero

N_DEVICES = 8
if __name__ == "__main__":
    jzero.simulate_devices(N_DEVICES)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from flax import linen as nn  # noqa: E402
from flax import nnx  # noqa: E402
from third_party_case import ROWS, Built  # noqa: E402

N_STEPS, STAGES = 3, (0, 1, 2, 3)
ALONE, PLAIN = "one device", "optax"


def compare(built: Built) -> dict[str, dict[str, Any]]:
    """Trains a few steps in every way.

    Returns:
        For each way, which is a stage, one device or a loop of Flax and optax, its `losses`, or as `failed` what stood
        in its way.
    """
    start: dict[str, Any] = {}

    def alone() -> list[float]:
        engine = _engine(built, 0, 1)
        start.update(jax.tree.map(jnp.copy, {"params": engine.params, "state": engine.state.model_state}))
        return list(_losses(engine, built))

    results = {ALONE: _outcome(alone)}
    if "failed" in results[ALONE]:  # there is nothing to compare with
        return results
    results[PLAIN] = _outcome(lambda: list(_by_optax(built, **start)))
    for stage in STAGES:
        results[f"stage {stage}"] = _outcome(lambda stage=stage: list(_losses(_engine(built, stage, N_DEVICES), built)))
    return results


def _outcome(losses: Callable[[], list[float]]) -> dict[str, Any]:
    try:
        return {"losses": losses()}
    except Exception as error:  # whatever a foreign model may raise is what the table is for
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"failed": f"{type(error).__name__}: {lines[0] if lines else 'without a word'}"}


def _optimizer() -> optax.GradientTransformation:
    # Not Adam, which makes a full step of a gradient that is nothing but rounding.
    return optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.05, momentum=0.9))


def _engine(built: Built, stage: int, n_devices: int) -> jzero.Engine:
    return jzero.initialize(
        model=built.model,
        loss_fn=built.loss_fn,
        config={
            "train_batch_size": ROWS,
            # Small models have small leaves, which would all stay whole.
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        },
        sample_batch=built.batch,
        optimizer=_optimizer(),
        mesh=jzero.make_mesh(jax.devices()[:n_devices]),
    )


def _losses(engine: jzero.Engine, built: Built) -> Iterator[float]:
    return (float(engine.train_batch(built.batch)["loss"]) for _ in range(N_STEPS))


def _by_optax(built: Built, params: Any, state: Any) -> Iterator[float]:
    """Trains as one does without jzero, from what jzero begins with."""
    loss = _pure_loss(built, params, state)
    if built.axis:
        loss = jax.vmap(loss, in_axes=None, out_axes=None, axis_size=1, axis_name=built.axis)
    optimizer = _optimizer()

    @jax.jit
    def step(params: Any, opt_state: Any, state: Any) -> tuple[Any, Any, tuple[Any, Any]]:
        (value, state), grads = jax.value_and_grad(loss, has_aux=True)(params, state)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, (state, value)

    opt_state = optimizer.init(params)
    for _ in range(N_STEPS):
        params, opt_state, (state, value) = step(params, opt_state, state)
        yield float(value)


def _pure_loss(built: Built, params: Any, state: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """`loss(params, state) -> (value, state)` by Flax alone."""
    model, loss_fn, batch = built.model, built.loss_fn, jax.tree.map(jnp.asarray, built.batch)
    if "train" in inspect.signature(loss_fn).parameters:
        loss_fn = partial(loss_fn, train=True)
    if isinstance(model, nn.Module):
        key = jax.random.key(0)

        def linen(params: Any, state: Any) -> tuple[Any, Any]:
            run = nn.apply(lambda m: loss_fn(m, batch), model, mutable=list(state))
            value, changed = run({"params": params, **state}, rngs={"params": key, "dropout": key})
            return value, {**state, **changed}

        return linen
    if hasattr(model, "init"):
        return lambda params, state: (loss_fn(params, batch), state)
    graphdef, as_params, streams, as_rest = nnx.split(model(nnx.Rngs(0)), nnx.Param, nnx.RngState, ...)
    params_def, rest_def = jax.tree.structure(as_params), jax.tree.structure(as_rest)

    def with_nnx(params: Any, state: Any) -> tuple[Any, Any]:
        states = params_def.unflatten(jax.tree.leaves(params)), rest_def.unflatten(jax.tree.leaves(state))
        module = nnx.merge(graphdef, states[0], streams, states[1], copy=True)
        module.train()
        value = loss_fn(module, batch)
        new = jax.tree.leaves(nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState))))
        return value, jax.tree.structure(state).unflatten(new)

    return with_nnx


def main(name: str) -> None:
    """Prints what became of one model, as JSON in the last line."""
    from third_party_models import MODELS

    try:
        results = compare(MODELS[name].build())
    except Exception as error:  # the package does not import, or makes no such model
        text = " ".join(str(error).split())
        results = {"building it": {"failed": f"{type(error).__name__}: {text or 'without a word'}"}}
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
