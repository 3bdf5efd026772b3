"""Runs a model of the zoo at stage 3 on 8 devices, once for all checks, and on one device beside it."""

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import jzero
from jzero.sharding.placement import Placement
from tests.helpers import config, host
from tests.zoo.case import ROWS, Case
from tests.zoo.reference import N_DEVICES, Steps, train_alone

FILES = (
    "transformers",
    "remat",
    "recurrent",
    "convolutional",
    "routed",
    "transformed_weights",
    "control_flow",
    "rules",
)
N_STEPS = 5


class Leaf(NamedTuple):
    """A parameter: its dotted name, how it lies, which dimensions a loop scans, and whether it is trained."""

    name: str
    placement: Placement
    scanned: frozenset[int]
    trained: bool


class Outcome(NamedTuple):
    """Both runs of a case, its leaves, and the jaxpr of its training step."""

    sharded: Steps
    alone: Steps
    leaves: list[Leaf]
    program: Any


def all_cases() -> dict[str, Case]:
    """Every case of every file, by name."""
    modules = [importlib.import_module(f"tests.zoo.{name}") for name in FILES]
    return {f"{m.__name__.split('.')[-1]}: {name}": case for m in modules for name, case in m.CASES.items()}


def run_both_ways(case: Case) -> Outcome:
    """Trains a case on 8 devices and on one."""
    # Not Adam, which makes a full step of a gradient that is nothing but rounding.
    optimizer = optax.sgd(0.05, momentum=0.9)
    engine = jzero.initialize(
        model=case.model,
        loss_fn=case.loss_fn,
        config=config(3, ROWS),
        sample_batch=case.batch,
        optimizer=recording(optimizer),
        trainable=case.trainable,
        mesh=jzero.make_mesh(jax.devices()[:N_DEVICES], tensor=case.tensor),
    )
    params, model_state = host(engine.params), host(engine.state.model_state)
    leaves = _leaves(engine)
    batch = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), engine.functional.batch)
    program = engine.functional.step.trace(engine.state, batch).jaxpr
    sharded = _train(engine, case, leaves)
    with jax.set_mesh(jzero.make_mesh(jax.devices()[: case.tensor], tensor=case.tensor)):
        alone = train_alone(case, params, model_state, [leaf.trained for leaf in leaves], optimizer, N_STEPS)
    return Outcome(sharded, alone, leaves, program)


def recording(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer whose state also holds the latest gradients: the only place where a user sees them exactly."""

    def init(params):
        return {"grads": jax.tree.map(jax.numpy.zeros_like, params), "inner": optimizer.init(params)}

    def update(grads, state, params=None):
        updates, inner = optimizer.update(grads, state["inner"], params)
        return updates, {"grads": grads, "inner": inner}

    return optax.GradientTransformation(init, update)


def _leaves(engine: jzero.Engine) -> list[Leaf]:
    is_placement = lambda x: isinstance(x, Placement)
    placements = jax.tree_util.tree_leaves_with_path(engine.placements, is_leaf=is_placement)
    trained = jax.tree.leaves(engine.functional.spec.trainable)
    scanned = engine.functional.scanned
    return [
        Leaf(jax.tree_util.keystr(path, simple=True, separator="."), p, scanned.get(i, frozenset()), t)
        for i, ((path, p), t) in enumerate(zip(placements, trained, strict=True))
    ]


def _train(engine: jzero.Engine, case: Case, leaves: list[Leaf]) -> Steps:
    trained = [leaf.placement for leaf in leaves if leaf.trained]
    losses, all_grads = [], []
    for _ in range(N_STEPS):
        losses.append(float(engine.train_batch(case.batch)["loss"]))
        stored = jax.tree.leaves(engine.state.opt_state["grads"])
        all_grads.append([np.array(p.unpad(g)) for p, g in zip(trained, stored, strict=True)])
    host_leaves: Callable = lambda tree: jax.tree.leaves(host(tree))
    return Steps(losses, all_grads, host_leaves(engine.params), host_leaves(engine.state.model_state))
