"""The same models on one device, by Flax and optax alone: what a sharded run must equal."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx

from tests.zoo.case import Case

N_DEVICES = 8


class Steps(NamedTuple):
    """A run: losses and gradients of each step, parameters and model state after the last; leaves as lists."""

    losses: list[float]
    grads: list[list[np.ndarray]]
    params: list[np.ndarray]
    model_state: list[np.ndarray]


def pure_loss(case: Case, params: Any, model_state: Any) -> Callable:
    """`loss(param_leaves, state_leaves, batch) -> (value, state_leaves)` of a case, given trees like its own."""
    if isinstance(case.model, nn.Module):
        params_def, state_def = jax.tree.structure(params), jax.tree.structure(model_state)

        def loss(leaves, state, batch):
            run = nn.apply(lambda m: case.loss_fn(m, batch), case.model, mutable=list(model_state))
            value, new = run({"params": params_def.unflatten(leaves), **state_def.unflatten(state)})
            return value, jax.tree.leaves({**state_def.unflatten(state), **new})

    elif hasattr(case.model, "init"):

        def loss(leaves, state, batch):
            return case.loss_fn(jax.tree.structure(params).unflatten(leaves), batch), state

    else:
        module = case.model(nnx.Rngs(0))
        graphdef, as_params, streams, as_rest = nnx.split(module, nnx.Param, nnx.RngState, ...)

        def loss(leaves, state, batch):
            states = (jax.tree.structure(as_params).unflatten(leaves), jax.tree.structure(as_rest).unflatten(state))
            module = nnx.merge(graphdef, states[0], streams, states[1], copy=True)
            module.train()
            value = case.loss_fn(module, batch)
            return value, jax.tree.leaves(nnx.state(module, nnx.Not(nnx.Any(nnx.Param, nnx.RngState))))

    return loss


def train_alone(
    case: Case, params: Any, model_state: Any, mask: list[bool], optimizer: optax.GradientTransformation, n_steps: int
) -> Steps:
    """Trains on one device; where the loss is no mean over rows, by the mean of gradients for each device's rows."""
    loss = pure_loss(case, params, model_state)

    def split(leaves, wanted):
        return [x for x, m in zip(leaves, mask, strict=True) if m is wanted]

    def joined(trained, frozen):
        trained, frozen = iter(trained), iter(frozen)
        return [next(trained if m else frozen) for m in mask]

    def objective(trained, frozen, state, batch):
        return loss(joined(trained, frozen), state, batch)

    def value_and_grad(trained, frozen, state, batch):
        of_rows = jax.value_and_grad(objective, has_aux=True)
        if not case.per_device:
            return of_rows(trained, frozen, state, batch)
        groups = jax.tree.map(lambda x: x.reshape(N_DEVICES, -1, *x.shape[1:]), batch)
        each = jax.lax.map(lambda rows: of_rows(trained, frozen, state, rows), groups)
        return jax.tree.map(lambda x: x.mean(0), each)

    @jax.jit
    def step(trained, frozen, opt_state, state, batch):
        (value, state), grads = value_and_grad(trained, frozen, state, batch)
        with jax.numpy_dtype_promotion("standard"):
            updates, opt_state = optimizer.update(grads, opt_state, trained)
        return optax.apply_updates(trained, updates), opt_state, state, value, grads

    leaves = [jnp.asarray(x) for x in jax.tree.leaves(params)]
    trained, frozen = split(leaves, True), split(leaves, False)
    opt_state, state = jax.jit(optimizer.init)(trained), [jnp.asarray(x) for x in jax.tree.leaves(model_state)]
    losses, all_grads = [], []
    for _ in range(n_steps):
        trained, opt_state, state, value, grads = step(trained, frozen, opt_state, state, case.batch)
        losses.append(float(value))
        all_grads.append([np.asarray(g) for g in grads])
    host = lambda xs: [np.asarray(x) for x in xs]
    return Steps(losses, all_grads, host(joined(trained, frozen)), host(state))
