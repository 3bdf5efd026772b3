"""NNX and Linen models under ZeRO: what is a parameter, what is state, what is random."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import jzero
from jzero.errors import ModelError
from jzero.flax.adapter import adapt
from jzero.flax.mean import as_means
from tests.helpers import assert_close, assert_equal_runs, batches, build, host, restart, squared_error, train
from tests.helpers import train_alone as alone

WIDTH = 136  # square kernels of this width are large enough to be divided at every stage
STEPS = batches(3, 16, WIDTH, 4)
SGD = optax.sgd(0.1, momentum=0.9)


class Block(nnx.Module):
    """Ties its output to its input layer, normalises, keeps arrays that are no variables, sows, counts."""

    def __init__(self, rngs):
        self.first = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.shifts = nnx.List([nnx.Param(jnp.full(WIDTH, i / 11, jnp.float32)) for i in range(11)])
        self.tied = self.first
        self.out = nnx.Linear(WIDTH, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.mask = jnp.arange(WIDTH, dtype=jnp.float32) / 128
        self.shift = np.full(4, 0.1, np.float32)
        self.unused = nnx.Param(jnp.ones(8, jnp.float32))
        self.calls = nnx.Variable(jnp.asarray(0, jnp.int32))

    def __call__(self, x):
        x = self.first(x)
        for i, shift in enumerate(self.shifts):
            x = x + jnp.tanh(x * (i - 5) + shift[...]) * 0.1
        x = self.norm(self.tied(x) * self.mask)
        self.calls[...] += jnp.asarray(1, jnp.int32)
        return self.out(x) + self.shift


class LinenNorm(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.tanh(nn.Dense(WIDTH)(x))
        self.sow("losses", "mean", x.mean())
        self.sow("intermediates", "hidden", x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        return nn.Dense(4)(x)


def linen_error(model, batch, train):
    error = ((model(batch["x"], train) - batch["y"]) ** 2).mean()
    return error + model.variables["losses"]["mean"][0] * 0.01


def linen_alone(steps, params, model_state):
    """Linen and optax on one device, with the whole batch's statistics."""
    model, opt_state, losses = LinenNorm(), SGD.init(params), []

    @jax.jit
    def step(params, opt_state, state, batch):
        def loss(p):
            out, changed = model.apply({"params": p, **state}, batch["x"], True, mutable=["batch_stats", "losses"])
            return ((out - batch["y"]) ** 2).mean() + changed["losses"]["mean"][0] * 0.01, changed["batch_stats"]

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, opt_state = SGD.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, {"batch_stats": stats}, value

    for batch in steps:
        params, opt_state, model_state, value = step(params, opt_state, model_state, batch)
        losses.append(float(value))
    return losses, host(params), host(model_state)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_nnx_model_trains_as_on_one_device(stage):
    engine = build(stage, STEPS[0], model=Block, optimizer=SGD)
    before = host(engine.params)
    assert "tied" not in before  # it is `first`
    assert [float(x[0]) * 11 for x in before["shifts"].values()] == pytest.approx(range(11))
    expected = alone(STEPS, before, SGD, model=Block)
    actual = train(engine, STEPS)
    assert_equal_runs(actual, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(actual.params["unused"], 1)

    state = host(engine.state.model_state)
    assert int(state["calls"]) == 3
    np.testing.assert_array_equal(state["mask"], np.arange(WIDTH, dtype=np.float32) / 128)
    np.testing.assert_array_equal(state["shift"], np.float32(0.1))


def load_params(module, params):
    nnx.update(module, jax.tree.structure(nnx.state(module, nnx.Param)).unflatten(jax.tree.leaves(params)))


def test_nnx_batch_statistics_are_those_of_the_whole_batch():
    steps = batches(2, 24, WIDTH, 4)
    engine = build(1, steps[0], model=Block, optimizer=SGD)
    module = Block(nnx.Rngs(0))
    load_params(module, host(engine.params))
    module.train()
    engine.train_batch(steps[0])
    module(steps[0]["x"])
    state = host(engine.state.model_state)
    np.testing.assert_allclose(state["norm"]["mean"], module.norm.mean[...], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state["norm"]["var"], module.norm.var[...], rtol=1e-5)
    np.testing.assert_array_equal(state["mask"], module.mask)
    module.eval()
    evaluated = engine.eval_batch(steps[1])
    load_params(module, jax.tree.map(jnp.asarray, host(engine.params)))
    np.testing.assert_allclose(evaluated["loss"], squared_error(module, steps[1]), rtol=1e-5)
    assert int(engine.state.model_state["calls"]) == 1  # evaluation changes nothing


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_linen_model_trains_as_on_one_device(stage):
    engine = build(stage, STEPS[0], model=LinenNorm(), loss_fn=linen_error, optimizer=SGD)
    assert engine.state.model_state.keys() == {"batch_stats"}  # what a call sows is no state
    losses, params, model_state = linen_alone(STEPS, host(engine.params), host(engine.state.model_state))
    actual = train(engine, STEPS)
    np.testing.assert_allclose(actual.losses, losses, rtol=1e-5)
    assert_close(actual.params, params, rtol=1e-4, atol=1e-5)
    assert_close(host(engine.state.model_state), model_state, rtol=1e-4)
    assert np.isfinite(float(engine.eval_batch(STEPS[0])["loss"]))


def test_model_state_lasts_in_its_own_dtype():
    class Average(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(WIDTH, 4, rngs=rngs)
            self.average = nnx.BatchStat(jnp.zeros(4, jnp.float32))

        def __call__(self, x):
            y = self.linear(x)
            self.average.set_value(y.mean(0))  # bf16
            return y

    engine = build(2, STEPS[0], model=Average, accumulation=2, sections={"bf16": {"enabled": True}})
    engine.train_batch(STEPS[0])
    average = engine.state.model_state["average"]
    assert average.dtype == jnp.float32
    assert np.asarray(average).all()


class Noisy(nnx.Module):
    """Tells in its loss which units were dropped, by the data shard that dropped them."""

    def __init__(self, rngs):
        self.scale = nnx.Param(jnp.ones((), jnp.float32))
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


class LinenNoisy(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dropout(0.5, deterministic=not train)(x) * self.param("scale", nn.initializers.ones, ())


def pattern(model, batch, train):
    ones = jnp.ones(20, jnp.float32)
    kept = model.dropout(ones) * model.scale[...] if isinstance(model, Noisy) else model(ones, train)
    code = jnp.sum(jnp.where(kept > 0, 2.0 ** jnp.arange(20, dtype=jnp.float32), 0.0))
    here = {f"row{i}": jnp.where(batch == i, code, 0).sum() * 8 for i in range(8)}  # a mean over 8 devices
    return kept.mean() + 0 * batch.sum(), {**here, "kept": (kept > 0).mean()}


@pytest.mark.parametrize("model", [Noisy, LinenNoisy()], ids=["nnx", "linen"])
def test_dropout_differs_by_shard_and_step_and_repeats_with_the_seed(model):
    batch = np.arange(8, dtype=np.float32)
    engine = build(1, batch, model=model, loss_fn=pattern)
    codes = lambda: [{k: float(v) for k, v in engine.train_batch(batch).items() if k[:3] == "row"} for _ in range(2)]
    first, second = codes()
    assert len({*first.values(), *second.values()}) == 16
    restart(engine)
    assert codes() == [first, second]
    restart(engine, seed=1)
    assert not {*codes()[0].values()} & {*first.values()}
    evaluated = [engine.eval_batch(batch) for _ in range(2)]
    assert [float(e["kept"]) for e in evaluated] == [1.0, 1.0]


def test_micro_batches_drop_differently():
    batch = np.arange(8, dtype=np.float32)
    engine = build(1, batch, model=Noisy, loss_fn=pattern, n_devices=1, accumulation=8)
    metrics = engine.train_batch(batch)
    assert len({float(v) for k, v in metrics.items() if k[:3] == "row"}) == 8


@pytest.mark.filterwarnings("ignore:Using 'Module.sow")
def test_what_an_nnx_model_sows_may_be_read_or_left():
    class Sower(nnx.Module):
        def __init__(self, rngs):
            self.linear = nnx.Linear(WIDTH, 4, rngs=rngs)

        def __call__(self, x):
            y = self.linear(x)
            self.sow(nnx.Intermediate, "y", y)
            return y

    def loss(model, batch):
        error = squared_error(model, batch)
        return error, {"size": (nnx.pop(model, nnx.Intermediate)["y"][0] ** 2).mean()}

    left = build(3, STEPS[0], model=Sower)
    read = build(3, STEPS[0], model=Sower, loss_fn=loss)
    assert float(left.train_batch(STEPS[0])["loss"]) == float(read.train_batch(STEPS[0])["loss"])
    assert float(read.eval_batch(STEPS[0])["size"]) > 0


class Affine:
    """No Flax: parameters in a tuple, and a loss that computes with them."""

    def init(self, key, batch):
        d_in, d_out = batch["x"].shape[-1], batch["y"].shape[-1]
        return jax.random.normal(key, (d_in, d_out)) / d_in, np.zeros(d_out, np.float32)


def affine_error(params, batch, train):
    weight, bias = params
    return ((batch["x"] @ weight + bias - batch["y"]) ** 2).mean(), {"train": jnp.asarray(train, jnp.float32)}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_pure_function_trains_as_on_one_device(stage):
    engine = build(stage, STEPS[0], model=Affine(), loss_fn=affine_error, optimizer=SGD)
    assert not jax.tree.leaves(engine.state.model_state)
    params = host(engine.params)
    opt_state = SGD.init(params)
    for batch in STEPS:
        grads = jax.grad(lambda p, b: affine_error(p, b, True)[0])(params, batch)
        updates, opt_state = SGD.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)
    assert [float(engine.train_batch(batch)["train"]) for batch in STEPS] == [1, 1, 1]
    assert_close(host(engine.params), host(params))
    assert float(engine.eval_batch(STEPS[0])["train"]) == 0


class NotArrays:
    def init(self, key, batch):
        return {"layers": [jnp.ones(3), 1.5]}


def test_a_parameter_must_be_an_array():
    with pytest.raises(ModelError, match=r"returned a float at params\['layers'\]\[1\]; every leaf must be an array"):
        build(3, STEPS[0], model=NotArrays(), loss_fn=affine_error)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            3,
            r"model is a int; jzero takes a Linen module, a function `.*` or an object with `init\(key",
        ),
        (
            SimpleNamespace(module=nn.Dense(2), params={}),
            r"SimpleNamespace around the Linen module Dense; pass `model\.module`, and trained weights",
        ),
        (nnx.Linear(2, 2, rngs=nnx.Rngs(0)), "model is an instance of Linear, already whole on one device"),
        (LinenNorm, r"model is the class LinenNorm; pass an instance of it, such as `model=LinenNorm\(\)`"),
        (lambda rngs: 3, r"model\(rngs\) returned a int; it must return a flax\.nnx\.Module"),
    ],
)
def test_other_models_are_refused(model, message):
    with pytest.raises(ModelError, match=message):
        adapt(model, squared_error)


ONE = jnp.ones((), jnp.float32)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (jnp.ones(3, jnp.float32), r"the loss has shape \(3,\); loss_fn must return scalars, for instance by taking"),
        (jnp.asarray(1, jnp.int32), r"the loss is an integer \(int32\); it must be floating to have a gradient"),
        (jnp.asarray(1j, jnp.complex64), "the loss is a scalar of dtype complex64; loss_fn must return real numbers"),
        ((ONE, {"accuracy": jnp.ones(2, jnp.float32)}), r"the metric 'accuracy' has shape \(2,\)"),
        ((ONE, [ONE]), "the second thing that loss_fn returned is a list; it must be a dict of metrics"),
        ((ONE, {"loss": ONE}), "loss_fn returned the metric 'loss', which the training step reports itself; rename it"),
        ((ONE, {"momentum": ONE}), "loss_fn returned the metric 'momentum', which the training step reports itself"),
        ((ONE, {1: ONE}), "loss_fn returned a metric named 1; names must be strings"),
        ((ONE, {}, ONE), "loss_fn returned 3 things; it must return a loss, or a loss and a dict of metrics"),
        (None, "the loss is a NoneType; loss_fn must return scalars"),
        ((ONE, {"name": "text"}), "the metric 'name' is a str; loss_fn must return scalars"),
        (jzero.Mean(ONE, jnp.ones(2, jnp.float32)), r"the loss has shape \(2,\)"),
    ],
)
def test_what_a_loss_may_not_return(returned, message):
    with pytest.raises(ModelError, match=message):
        as_means(returned)


class EveryCall(nn.Module):
    """Takes the statistics of the batch at hand, in evaluation too."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(nn.BatchNorm(use_running_average=False)(x))


def test_state_that_changes_in_evaluation_is_refused():
    engine = build(1, STEPS[0], model=EveryCall())
    with pytest.raises(ModelError, match=r'changes its state in evaluation \(Cannot update variable "mean".*`train`'):
        engine.eval_batch(STEPS[0])


DENSE = nn.Dense(4)


@pytest.mark.parametrize(
    "loss",
    [
        lambda params, batch: squared_error(lambda x: DENSE.apply({"params": params}, x), batch),
        lambda params, batch: squared_error(lambda x: DENSE.apply(params, x), batch),
        lambda model, batch: squared_error(lambda x: DENSE.apply({"params": model.variables["params"]}, x), batch),
        lambda params, batch: squared_error(lambda x: x @ params["kernel"], batch),
    ],
    ids=["params", "variables", "of the model", "by name"],
)
def test_a_linen_loss_of_parameters_is_told_what_it_gets(loss):
    with pytest.raises(ModelError, match=r"loss_fn \(.*\) takes its first argument for parameters, but gets the model"):
        build(3, STEPS[0], model=DENSE, loss_fn=loss)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Affinely:
    """As an Equinox module is: a pytree that can be called."""

    weight: jax.Array

    def __call__(self, x):
        return x @ self.weight


def test_a_pytree_with_arrays_is_told_how_it_can_be_given():
    with pytest.raises(ModelError, match=r"an instance of Affinely, a pytree with arrays .*eqx\.filter\(Affinely"):
        adapt(Affinely(jnp.ones((3, 4), jnp.float32)), squared_error)
