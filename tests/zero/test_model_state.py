"""Model state is the same on every device after a step, or refused before the first one."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jzero
from jzero.errors import ModelError
from tests.helpers import build, host

BATCH = {"x": np.random.default_rng(0).standard_normal((32, 16), np.float32)}


class Counter(nnx.Variable):
    pass


class Counting(nnx.Module):
    """Counts calls and, in one way or another, positive outputs."""

    def __init__(self, count, rngs):
        self.count, self.linear = count, nnx.Linear(16, 4, rngs=rngs)
        self.calls, self.positive = (Counter(jnp.zeros((), jnp.int32)) for _ in range(2))
        self.seen = Counter(jnp.zeros((), bool))

    def __call__(self, x):
        y = self.linear(x)
        self.calls[...] += 1
        self.positive[...] += self.count((y > 0).sum())
        return y


class Averaging(nn.Module):
    """A norm of one's own that names no axis."""

    @nn.compact
    def __call__(self, x):
        mean = self.variable("stats", "mean", jnp.zeros, x.shape[-1])
        if not self.is_initializing():
            mean.value = 0.5 * mean.value + 0.5 * x.mean(0)
        return nn.Dense(4)(x - mean.value)


class Remembering(nn.Module):
    """Keeps the last rows, as a cache does."""

    @nn.compact
    def __call__(self, x):
        last = self.variable("cache", "last", jnp.zeros, x.shape)
        y = nn.Dense(4)(x + last.value)
        last.value = x
        return y


def loss(model, batch):
    return (model(batch["x"]) ** 2).mean()


@pytest.mark.parametrize("accumulation", [1, 2])
def test_counts_that_are_summed_are_those_of_one_device(accumulation):
    def counts(n_devices):
        model = lambda rngs: Counting(jzero.psum, rngs)
        engine = build(3, BATCH, model=model, loss_fn=loss, accumulation=accumulation, n_devices=n_devices, seed=1)
        for _ in range(2):
            engine.train_batch(BATCH)
        return host(engine.state.model_state)

    one, many = counts(1), counts(8)
    assert int(many["calls"]) == 2 * accumulation
    assert int(one["positive"]) == pytest.approx(int(many["positive"]), abs=1)  # an output may be next to nothing


def test_counts_of_each_device_s_own_rows_are_refused_with_what_to_write():
    with pytest.raises(ModelError, match=r"state positive holds int32 that depend on the rows.* jzero\.psum\(count\)"):
        build(0, BATCH, model=lambda rngs: Counting(lambda n: n, rngs), loss_fn=loss)


def test_state_with_an_entry_a_row_is_refused():
    with pytest.raises(ModelError, match=r"state cache\.last, of shape \(4, 16\), has entries for the rows of a batch"):
        build(0, BATCH, model=Remembering(), loss_fn=loss)


def test_statistics_that_differ_are_averaged_and_that_is_said(caplog):
    caplog.set_level("INFO", "jzero")
    engine = build(2, BATCH, model=Averaging(), loss_fn=loss)
    engine.train_batch(BATCH)
    assert "the model's state stats.mean depends on the rows of each device and is averaged over" in caplog.text
    mean = engine.state.model_state["stats"]["mean"]
    np.testing.assert_allclose(np.asarray(mean), 0.5 * BATCH["x"].mean(0), rtol=1e-5, atol=1e-6)
    assert len({np.asarray(s.data).tobytes() for s in mean.addressable_shards}) == 1


def test_flax_s_own_statistics_are_those_of_the_whole_batch_and_nothing_is_said(caplog):
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(4)(nn.BatchNorm(use_running_average=False)(x))

    caplog.set_level("INFO", "jzero")
    assert build(2, BATCH, model=Net(), loss_fn=loss).functional.averaged_state == ()
    assert "averaged" not in caplog.text
