"""How gradients travel, seen through the engine: what divides them before the sum decides which of them arrive."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers import assert_equal_runs, batches, build, mesh_of, train

N = 8
BATCH = {"size": np.zeros(N, np.float32)}
STEPS = batches(2, 16)
PLACES = {  # where DeepSpeed divides gradients on request
    "stage 0": {"stage": 0},
    "stage 1": {"stage": 1, "reduce_scatter": False},
    "stage 2": {"stage": 2, "reduce_scatter": False},
}
PRESCALED = {"prescale_gradients": True}


def predivided(factor):
    return {"gradient_predivide_factor": factor}


class Weight(nnx.Module):
    def __init__(self, rngs):
        self.w = nnx.Param(jnp.zeros((16, 1032), jnp.float32))  # large enough to be divided


def pull(model, batch):
    """A loss whose gradient is the same number on every device and for every element."""
    return model.w[...].sum() * batch["size"].mean()


def step(size, zero, replica=1, **sections):
    """The mean gradient that a step over 8 devices applies, and whether it overflowed."""
    sections = {"zero_optimization": zero, "optimizer": {"type": "SGD", "params": {"lr": 1.0}}, **sections}
    engine = build(0, BATCH, model=Weight, loss_fn=pull, replica=replica, sections=sections)
    metrics = engine.train_batch({"size": np.full(N, size, np.float32)})
    applied = {*np.unique(-np.asarray(engine.params["w"])).tolist()}
    assert len(applied) == 1
    return applied.pop(), bool(metrics["overflow"])


@pytest.mark.parametrize("zero", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("grad_reduce", ["fp16", "bf16", "fp32"])
def test_a_sum_beyond_fp16_overflows_only_where_too_little_is_divided_first(zero, grad_reduce):
    sent = lambda size, **keys: step(size, zero, communication_data_type=grad_reduce, **keys)
    assert sent(2.0**14) == (2.0**14, False)  # the sum over 8 devices is 2**17, and fp16 ends below 2**16
    assert sent(2.0**14, **PRESCALED) == (2.0**14, False)
    assert sent(2.0**14, **predivided(4.0)) == (2.0**14, False)
    assert sent(2.0**14, **predivided(2.0)) == ((0.0, True) if grad_reduce == "fp16" else (2.0**14, False))


@pytest.mark.parametrize("zero", PLACES.values(), ids=PLACES)
def test_a_gradient_that_fp16_cannot_divide_arrives_when_it_is_not(zero):
    sent = lambda **keys: step(2.0**-24, zero, communication_data_type="fp16", **keys)  # the least that fp16 holds
    assert sent() == (0.0, False)
    assert sent(**PRESCALED) == (0.0, False)
    assert sent(**predivided(0.125)) == (2.0**-24, False)


@pytest.mark.parametrize("replica", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_what_arrives_has_the_digits_of_the_wire(stage, replica):
    sent = lambda size, grad_reduce: step(size, {"stage": stage}, replica, communication_data_type=grad_reduce)[0]
    for grad_reduce, digits in {"bf16": 7, "fp16": 10, "fp32": 23}.items():
        assert sent(1 + 2.0**-digits, grad_reduce) == 1 + 2.0**-digits
        if grad_reduce != "fp32":
            assert sent(1 + 2.0 ** -(digits + 2), grad_reduce) == 1


@pytest.mark.parametrize("zero", PLACES.values(), ids=PLACES)
def test_in_fp32_every_division_trains_alike(zero):
    sections = {"zero_optimization": zero}
    plain, *others = (
        train(build(0, STEPS[0], accumulation=2, sections=sections | keys), STEPS)
        for keys in ({}, PRESCALED, predivided(3.0))
    )
    for other in others:
        assert_equal_runs(other, plain)


def test_replicas_are_among_the_devices_that_a_prescaled_sum_divides_by():
    engine = build(0, STEPS[0], replica=2, sections=PRESCALED)
    assert engine.functional.spec.grad_reduce.divisor == N
    assert engine.mesh.shape == mesh_of(N, replica=2).shape
