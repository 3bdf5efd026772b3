"""Parameters and model state that a run begins with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

from jzero.errors import ModelError
from tests.helpers import build, host

BATCH = {"x": np.random.default_rng(0).normal(3.0, 2.0, (32, 16)).astype(np.float32)}


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(4)(nn.BatchNorm(use_running_average=not train)(x))


class NNXNet(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.linear = nnx.BatchNorm(16, rngs=rngs), nnx.Linear(16, 4, rngs=rngs)

    def __call__(self, x):
        return self.linear(self.norm(x))


def linen_loss(model, batch, train):
    return (model(batch["x"], train) ** 2).mean()


def nnx_loss(model, batch):
    return (model(batch["x"]) ** 2).mean()


@pytest.fixture(scope="module")
def trained():
    """A Linen module's variables with statistics that are not those of a new one, and its loss in evaluation."""
    variables = LinenNet().init(jax.random.key(0), BATCH["x"], True)
    _, changed = LinenNet().apply(variables, BATCH["x"], True, mutable=["batch_stats"])
    variables = {**variables, **changed}
    return host(variables), float((LinenNet().apply(variables, BATCH["x"], False) ** 2).mean())


def test_statistics_are_taken_over_in_either_form(trained):
    variables, expected = trained
    apart = {"params": variables["params"], "model_state": {"batch_stats": variables["batch_stats"]}}
    for given in (apart, {"params": variables}):
        engine = build(3, BATCH, model=LinenNet(), loss_fn=linen_loss, **given)
        assert float(engine.eval_batch(BATCH)["loss"]) == pytest.approx(expected, rel=1e-5)
        assert np.isfinite(float(engine.train_batch(BATCH)["loss"]))


def test_an_nnx_module_s_whole_state_is_taken_over():
    module = NNXNet(nnx.Rngs(1))
    module(BATCH["x"])  # moves the statistics
    given = nnx.to_pure_dict(nnx.state(module))
    engine = build(2, BATCH, model=lambda rngs: NNXNet(rngs), loss_fn=nnx_loss, params=given)
    module.eval()
    expected = float(nnx_loss(module, BATCH))
    assert float(engine.eval_batch(BATCH)["loss"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda v: {"model_state": {"batch_stats": {"BatchNorm_0": {"mean": v["mean"]}}}},
            r"model_state do not fit the model in 1 leaves: batch_stats\.BatchNorm_0\.var: missing, expected \(16,\)",
        ),
        (
            lambda v: {"model_state": {"batch_stats": {"BatchNorm_0": {**v, "var": v["var"][:3]}}}},
            r"batch_stats\.BatchNorm_0\.var: \(3,\), expected \(16,\)",
        ),
        (
            lambda v: {
                "model_state": {"batch_stats": {"BatchNorm_0": {**v, "var": v["var"].astype(np.float64) * 1e300}}}
            },
            r"model_state leaf batch_stats\.BatchNorm_0\.var holds .*, which is infinite in float32",
        ),
        (
            lambda v: {"model_state": {"batch_stats": {"BatchNorm_0": {**v, "var": np.full(16, "a")}}}},
            "var holds <U1, which is no number",
        ),
    ],
)
def test_state_of_another_model_is_a_sentence(trained, change, message):
    stats = trained[0]["batch_stats"]["BatchNorm_0"]
    with pytest.raises(ModelError, match=message):
        build(0, BATCH, model=LinenNet(), loss_fn=linen_loss, **change(stats))


class Table:
    def init(self, key, batch):
        return {"ids": jnp.zeros(3, jnp.int32), "w": jnp.zeros((16, 4))}


def test_whole_numbers_that_do_not_fit_are_refused_in_parameters_too():
    loss = lambda params, batch: ((batch["x"] @ params["w"]) ** 2).mean() + 0 * params["ids"].sum().astype(jnp.float32)
    given = {"ids": np.array([1, 2, 2**31]), "w": np.zeros((16, 4))}
    with pytest.raises(ModelError, match="params leaf ids holds 2147483648, which int32 cannot hold"):
        build(0, BATCH, model=Table(), loss_fn=loss, params=given)
