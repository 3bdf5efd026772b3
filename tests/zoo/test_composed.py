"""Models composed at random: at every stage they have the losses and gradients of one device."""

import jax
import numpy as np
import optax
import pytest

import jzero
from tests.helpers import config, host
from tests.zoo.case import ROWS
from tests.zoo.composed import composed, layers
from tests.zoo.harness import recording
from tests.zoo.reference import N_DEVICES, train_alone

SEEDS, N_STEPS = range(200), 2
SAMPLE = {7: 3, 11: 2}
"""What runs every day: seeds of models, and the stage of each."""

EACH = [
    pytest.param(seed, stage, marks=[pytest.mark.full] * (SAMPLE.get(seed) != stage))
    for seed in SEEDS
    for stage in range(4)
]


@pytest.mark.parametrize(("seed", "stage"), EACH)
def test_a_composed_model_trains_as_on_one_device(seed, stage):
    case, optimizer = composed(seed), optax.sgd(0.05, momentum=0.9)
    engine = jzero.initialize(
        model=case.model,
        loss_fn=case.loss_fn,
        config=config(stage, ROWS),
        sample_batch=case.batch,
        optimizer=recording(optimizer),
        mesh=jzero.make_mesh(jax.devices()[:N_DEVICES]),
        seed=seed,
    )
    params = host(engine.params)
    trained = jax.tree.leaves(engine.functional.spec.trainable)
    alone = train_alone(case, params, {}, trained, optimizer, N_STEPS)
    for step in range(N_STEPS):
        loss = float(engine.train_batch(case.batch)["loss"])
        assert loss == pytest.approx(alone.losses[step], rel=1e-5), layers(seed)
        placed = zip(jax.tree.leaves(engine.placements), jax.tree.leaves(engine.state.opt_state["grads"]), strict=True)
        largest = max(np.abs(g).max() for g in alone.grads[step])
        for (placement, got), want, name in zip(placed, alone.grads[step], sorted(params), strict=True):
            off = np.abs(np.array(placement.unpad(got)) - want).max()
            assert off <= 1e-4 * np.abs(want).max() + 1e-5 * largest, (name, off, layers(seed))
