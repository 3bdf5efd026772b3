"""Any optax transformation gives what it gives on one device, at every stage, padded leaves included."""

import optax
import pytest
from optax import contrib

from tests.helpers import assert_equal_runs, batches, build, host, train, train_alone

STEPS = batches(2, 16)


def by_part(first, second, rest):
    """Different transformations for the parts of the model."""
    labels = {
        "empty": "rest",
        "first": {"bias": "first", "kernel": "first"},
        "gain": "rest",
        "second": {"bias": "second", "kernel": "second"},
    }
    return optax.multi_transform({"first": first, "second": second, "rest": rest}, labels)


CHAIN = optax.chain(
    optax.clip_by_global_norm(0.1), optax.trace(0.9), optax.add_decayed_weights(0.1), optax.scale_by_learning_rate(0.1)
)
OPTIMIZERS = {
    "adafactor, lamb, sgd": by_part(
        optax.adafactor(0.01, min_dim_size_to_factor=64),
        optax.lamb(0.01, weight_decay=0.1),
        optax.sgd(0.1, momentum=0.9, nesterov=True),
    ),
    "muon, chain, lion": by_part(contrib.muon(0.01), CHAIN, optax.lion(0.01)),
}


@pytest.fixture(scope="module")
def start():
    return host(build(0, STEPS[0], n_devices=1).params)


@pytest.fixture(scope="module", params=OPTIMIZERS.items(), ids=OPTIMIZERS)
def case(request, start):
    optimizer = request.param[1]
    return optimizer, train_alone(STEPS, start, optimizer)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_any_transformation_equals_one_device(case, stage):
    optimizer, expected = case
    engine = build(stage, STEPS[0], optimizer=optimizer)
    assert_equal_runs(train(engine, STEPS), expected, rtol=1e-4, atol=1e-5)


def test_a_transformation_may_ask_for_the_loss():
    """Such as one that lowers the learning rate when the loss stands still."""
    plateau = contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=1.0, accumulation_size=1)
    engine = build(3, STEPS[0], optimizer=optax.chain(optax.sgd(0.01), plateau))
    for _ in range(4):
        engine.train_batch(STEPS[0])
    assert 0 < float(optax.tree.get(engine.state.opt_state, "scale")) < 1
