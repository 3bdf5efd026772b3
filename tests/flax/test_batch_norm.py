"""Normalisation over the whole batch however Flax runs it, and layers that stay as the user froze them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.nnx import bridge

from tests.helpers import assert_close, build, host

BATCH = {"x": np.random.default_rng(0).normal(3.0, 2.0, (32, 16)).astype(np.float32)}


def loss(model, batch):
    return (model(batch["x"]) ** 2).mean()


class LinenInNNX(nnx.Module):
    def __init__(self, rngs):
        self.norm = bridge.ToNNX(nn.BatchNorm(use_running_average=False, momentum=0.5), rngs=rngs)
        bridge.lazy_init(self.norm, BATCH["x"][:4])
        self.linear = nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.linear(self.norm(x, mutable=["batch_stats"]))


class NNXInLinen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(bridge.to_linen(nnx.BatchNorm, 16, momentum=0.5)(x))


class OwnNorm(nn.Module):
    """A copy of Linen's BatchNorm, as some packages have one."""

    axis_name: str | None = None

    @nn.compact
    def __call__(self, x):
        mean, var = (
            self.variable("batch_stats", n, f, x.shape[-1]) for n, f in (("mean", jnp.zeros), ("var", jnp.ones))
        )
        now = [x.mean(0), jnp.square(x).mean(0)]
        if self.axis_name is not None:
            now = jax.lax.pmean(now, self.axis_name)
        if not self.is_initializing():
            mean.value, var.value = now[0], now[1] - jnp.square(now[0])
        return (x - now[0]) * jax.lax.rsqrt(now[1] - jnp.square(now[0]) + 1e-5)


class WithOwnNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(OwnNorm()(x))


MODELS = {"Linen in NNX": lambda rngs: LinenInNNX(rngs), "NNX in Linen": NNXInLinen(), "a copy": WithOwnNorm()}


@pytest.mark.parametrize("name", MODELS)
def test_statistics_are_those_of_the_whole_batch_whoever_takes_them(name):
    model = MODELS[name]
    one, many = (build(2, BATCH, model=model, loss_fn=loss, n_devices=n, optimizer=optax.sgd(0.1)) for n in (1, 8))
    assert many.functional.averaged_state == ()
    for _ in range(2):
        losses = [float(engine.train_batch(BATCH)["loss"]) for engine in (one, many)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert_close(host(many.state.model_state), host(one.state.model_state), rtol=1e-5, atol=1e-6)


class Frozen(nnx.Module):
    """Two layers that are frozen when they are made, and two that are not."""

    def __init__(self, rngs):
        self.linear = nnx.Linear(16, 16, rngs=rngs)
        self.frozen = nnx.BatchNorm(16, use_running_average=True, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.5, rngs=rngs)
        self.kept = nnx.Dropout(0.9, deterministic=True, rngs=rngs)

    def __call__(self, x):
        return self.norm(self.kept(self.frozen(self.linear(x))) + 1)


def test_layers_that_the_user_froze_stay_frozen_and_the_others_train():
    engine = build(3, BATCH, model=lambda rngs: Frozen(rngs), loss_fn=loss, seed=1)
    module = Frozen(nnx.Rngs(0))
    nnx.update(module, nnx.state(module, nnx.Param))
    params = host(engine.params)
    module.linear.kernel[...], module.linear.bias[...] = params["linear"]["kernel"], params["linear"]["bias"]
    expected = float(loss(module, BATCH))
    assert float(engine.train_batch(BATCH)["loss"]) == pytest.approx(expected, rel=1e-5)
    state = host(engine.state.model_state)
    np.testing.assert_array_equal(state["frozen"]["mean"], np.zeros(16))
    np.testing.assert_allclose(state["norm"]["mean"], module.norm.mean[...], rtol=1e-4, atol=1e-5)
    assert np.abs(state["norm"]["mean"]).max() > 0.1
