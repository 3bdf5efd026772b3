"""The functional layer: pure functions whose abstract state is the real one, and errors that are sentences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jzero
from jzero.errors import BatchError, ConfigError, ModelError
from jzero.start import functional
from tests.helpers import batches, build, config, count_primitives, host, make_net, mesh_of, squared_error

STEPS = batches(2, 16)


def make(stage=3, *, sample_batch=STEPS[0], rows=16, accumulation=1, drop=(), n_devices=8, **options):
    given = {k: v for k, v in config(stage, rows, accumulation).items() if k not in drop}
    resolved = jzero.Config.load(given).resolve(world=n_devices)
    options = {"model": make_net, "loss_fn": squared_error, "mesh": mesh_of(n_devices), **options}
    return functional(config=resolved, sample_batch=sample_batch, **options)


@pytest.fixture(scope="module")
def stage_3():
    return make(3, accumulation=2)


def test_the_state_is_what_the_abstract_one_says_before_and_after_a_step(stage_3):
    state = stage_3.init(np.uint32(0))
    batch = jax.tree.map(lambda x, like: jax.device_put(x.reshape(like.shape), like.sharding), STEPS[0], stage_3.batch)
    after, metrics = stage_3.step(stage_3.init(np.uint32(0)), batch)
    for real in (state, after):
        assert jax.tree.structure(real) == jax.tree.structure(stage_3.state)
        for x, like in zip(jax.tree.leaves(real), jax.tree.leaves(stage_3.state), strict=True):
            assert (x.shape, x.dtype) == (like.shape, like.dtype)
            assert x.sharding.is_equivalent_to(like.sharding, x.ndim)
    assert jax.tree.leaves(after.opt_state)[0].dtype == jnp.int32
    assert metrics["loss"].is_fully_replicated


def test_building_runs_nothing_and_init_never_makes_a_whole_parameter_twice(stage_3):
    assert all(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves((stage_3.state, stage_3.batch)))
    first = stage_3.state.params["first"]["kernel"]
    assert first.shape in [(136, 131), (129, 136)]  # padded
    assert np.prod(first.sharding.shard_shape(first.shape)) * 8 == np.prod(first.shape)
    assert stage_3.placements.params["first"]["kernel"].shape == (129, 131)
    assert stage_3.batch["x"].shape == (2, 8, 129)


def test_the_same_seed_gives_the_same_state_at_every_stage(stage_3):
    whole, sharded = make(0).init(np.uint32(3)), stage_3.init(np.uint32(3))
    kernels = [np.asarray(s.params["second"]["kernel"]) for s in (whole, sharded)]
    np.testing.assert_array_equal(*kernels)
    assert not np.array_equal(kernels[0], np.asarray(stage_3.init(np.uint32(4)).params["second"]["kernel"]))


def frozen_first(name):
    return not name.startswith("first")


MASK = {
    "empty": True,
    "first": {"bias": False, "kernel": False},
    "gain": True,
    "second": {"bias": True, "kernel": True},
}


@pytest.mark.parametrize(("stage", "trainable"), [(0, frozen_first), (1, MASK), (2, frozen_first), (3, MASK)])
def test_frozen_parameters_stay_and_have_neither_moments_nor_gradient_collectives(stage, trainable):
    reduces = {0: ("psum", "psum_invariant"), 1: ("reduce_scatter",), 2: ("reduce_scatter",), 3: ("reduce_scatter",)}
    engine = build(stage, STEPS[0], trainable=trainable)
    counts = []
    for fns in (engine.functional, make(stage)):
        traced = fns.step.trace(fns.state, fns.batch)
        counts.append(count_primitives(traced.jaxpr.jaxpr, *reduces[stage]))
    frozen_leaves = 1 if stage else 2  # the bias of 131 is whole, its sum one of a common psum from stage 1 on
    assert counts[0] == counts[1] - frozen_leaves

    before = host(engine.params)
    engine.train_batch(STEPS[0])
    after = host(engine.params)
    for name in ("kernel", "bias"):
        np.testing.assert_array_equal(after["first"][name], before["first"][name])
        assert not np.array_equal(after["second"][name], before["second"][name])
    shapes = {p.shape for p in jax.tree.leaves(engine.functional.placements.opt_state, is_leaf=_has_shape)}
    assert not shapes & {(129, 131), (131,)}
    assert (131, 8) in shapes


def _has_shape(x):
    return hasattr(x, "padded_shape")


class Integer(nnx.Module):
    def __init__(self, rngs):
        self.table = nnx.Param(jnp.arange(8, dtype=jnp.int32))


class Nothing(nnx.Module):
    def __init__(self, rngs):
        self.variable = nnx.BatchStat(jnp.ones(3, jnp.float32))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sample_batch": {}}, BatchError, "sample_batch holds no arrays; give one batch as train_batch would get it"),
        (
            {"sample_batch": {"x": np.ones((7, 129), np.float32), "y": STEPS[0]["y"]}},
            BatchError,
            r"sample_batch leaf x has shape \(7, 129\); its leading dimension must be train_batch_size = 16",
        ),
        ({"sample_batch": np.float32(1)}, BatchError, r"sample_batch leaf \(the batch itself\) has shape \(\)"),
        ({"model": Nothing}, ModelError, r"the model has no parameters \(nnx\.Param, or the collection 'params' in Li"),
        ({"model": Integer}, ModelError, "no parameter is trainable; the model has table"),
        (
            {"trainable": lambda name: False},
            ModelError,
            "no parameter is trainable; the model has empty, first.bias, first.kernel, gain, second.bias, …",
        ),
        (
            {"trainable": {"first": True}},
            ModelError,
            "trainable must be a function of a parameter's name, a type of NNX variable or a pytree of",
        ),
        (
            {"trainable": nnx.LoRAParam},
            ModelError,
            "trainable is LoRAParam, but no parameter is of that type; there are Param",
        ),
        ({"drop": ("optimizer",)}, ConfigError, "the configuration has no `optimizer`; add one, or pass an optax"),
        (
            {"loss_fn": lambda model, batch: model(batch["x"]).mean(1)},
            ModelError,
            r"the loss has shape \(2,\); loss_fn must return scalars",
        ),
    ],
)
def test_what_does_not_fit_is_a_sentence(options, error, message):
    with pytest.raises(error, match=message):
        make(3, **options)


def test_64_bit_batches_are_taken_as_jax_takes_them():
    wide = {k: v.astype(np.float64) for k, v in STEPS[0].items()}
    engine = build(1, wide)
    assert {x.dtype for x in jax.tree.leaves(engine.functional.batch)} == {jnp.dtype("float32")}
    narrow = build(1, STEPS[0])
    for step in (wide, STEPS[0]):
        assert float(engine.train_batch(step)["loss"]) == float(narrow.train_batch(STEPS[0])["loss"])
    assert float(engine.eval_batch(wide)["loss"]) == float(engine.eval_batch(STEPS[0])["loss"])


def test_batches_may_be_nested_bare_boolean_or_empty():
    batch = {
        "nested": [STEPS[0]["x"], (STEPS[0]["y"], None)],
        "keep": np.arange(16) % 3 > 0,
        "weight": np.arange(16, dtype=np.int8),
        "empty": np.zeros((16, 0), np.float32),
    }

    def loss(model, batch):
        x, (y, nothing) = batch["nested"]
        assert nothing is None
        error = ((model(x) - y) ** 2).mean(-1)
        weight = batch["weight"].astype(jnp.float32)
        return jnp.where(batch["keep"], error * weight, 0).mean() + batch["empty"].sum()

    engine = build(3, batch, loss_fn=loss)
    module = nnx.merge(*_with_params(engine))
    expected = loss(module, batch)
    np.testing.assert_allclose(engine.train_batch(batch)["loss"], expected, rtol=1e-5)
    bare = build(2, STEPS[0]["x"], loss_fn=lambda model, x: (model(x) ** 2).mean())
    assert np.isfinite(float(bare.train_batch(STEPS[0]["x"])["loss"]))


def _with_params(engine):
    graphdef, abstract = nnx.split(make_net(nnx.Rngs(0)))
    return graphdef, jax.tree.structure(abstract).unflatten(jax.tree.leaves(host(engine.params)))


class Adapted(nnx.Module):
    def __init__(self, rngs):
        self.around = nnx.LoRA(129, 2, 8, base_module=nnx.Linear(129, 8, rngs=rngs), rngs=rngs)
        self.inside = nnx.LoRALinear(8, 8, lora_rank=2, rngs=rngs)

    def __call__(self, x):
        return self.inside(self.around(x))


def test_a_type_of_variable_chooses_what_trains():
    trained = make(3, model=Adapted, trainable=nnx.LoRAParam).spec.trainable
    leaves = jax.tree.leaves_with_path(trained)
    names = {jax.tree_util.keystr(path, simple=True, separator=".") for path, wanted in leaves if wanted}
    assert names == {"around.lora_a", "around.lora_b", "inside.lora.lora_a", "inside.lora.lora_b"}
