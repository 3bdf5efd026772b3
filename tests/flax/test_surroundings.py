"""Models that expect a mesh, or an axis of pmap's, around them: they train all the same, or a sentence says why not."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jzero
from jzero.errors import ModelError
from jzero.flax import surroundings
from jzero.flax.model import Model
from jzero.sharding.mesh import DATA_AXES, shard_over_data
from tests.helpers import batches, build, config, mesh_of, squared_error

(BATCH,) = batches(1, 16, 8, 4)
MESH = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])


class Net(nn.Module):
    """A Linen model with something done to its hidden units, and its kernel with a layout of its own or without."""

    between: object = staticmethod(lambda x: x)
    layout: object = staticmethod(lambda init: init)
    norm_axis: str | None = None

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(32, kernel_init=self.layout(nn.initializers.lecun_normal()))(x)
        return nn.Dense(4)(self.between(nn.BatchNorm(use_running_average=False, axis_name=self.norm_axis)(x)))


class Partitioned(nnx.Module):
    def __init__(self, rngs):
        kernel_init = nnx.with_partitioning(nnx.initializers.lecun_normal(), (None, "tp"))
        self.linear = nnx.Linear(8, 4, kernel_init=kernel_init, rngs=rngs)

    def __call__(self, x):
        return self.linear(x)


def logical(x):
    rules = (("batch", "data"), ("mlp", "model"))
    return nn.with_logical_constraint(x, ("batch", "mlp"), rules=rules)


def guarded(x):
    return x if jax.sharding.get_abstract_mesh().empty else jax.lax.with_sharding_constraint(x, P("data", None))


def mean_over_batch(model, batch):
    return jax.lax.pmean(squared_error(model, batch), "batch")


def traced(model, loss_fn=squared_error):
    """Builds a run, which traces the loss and compiles nothing."""
    return jzero.functional(
        model=model, loss_fn=loss_fn, config=config(3, 16), sample_batch=BATCH, mesh=mesh_of(8, replica=2)
    )


@pytest.fixture
def said(caplog):
    surroundings._say.cache_clear()
    caplog.set_level(logging.INFO, "jzero")
    return lambda: " ".join(record.getMessage() for record in caplog.records if record.name == "jzero")


def test_names_of_another_mesh_change_no_number(said):
    layout = lambda init: nn.with_partitioning(init, (None, "data"), mesh=MESH)
    model = Net(lambda x: logical(guarded(x)), layout, norm_axis="batch")
    with jax.set_mesh(jax.make_mesh((4,), ("data",), devices=jax.devices()[:4])):  # of fewer devices, and explicit
        engine = build(3, BATCH, model=model, loss_fn=mean_over_batch, replica=2)
        losses = [float(engine.train_batch(BATCH)["loss"]) for _ in range(2)]
    plain = build(0, BATCH, model=Net(), n_devices=1)
    assert losses == pytest.approx([float(plain.train_batch(BATCH)["loss"]) for _ in range(2)], rel=1e-5)
    assert "1 variables of the model name a layout of their own" in said()
    assert "the axis 'batch' that the loss names stands for all devices that share the batch" in said()
    assert "the loss lays arrays out over a mesh of its own" in said()


@pytest.mark.parametrize(
    "between",
    [
        lambda x: jax.lax.with_sharding_constraint(x, P("data")),
        lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(MESH, P("data"))),
        lambda x: jax.sharding.reshard(x, P("data")),
    ],
    ids=["spec", "named", "reshard"],
)
def test_constraints_are_left_out_though_nothing_guards_them(between):
    with jax.set_mesh(MESH):
        traced(Net(between))


def test_an_nnx_model_with_layouts_can_be_made(said):
    fns = traced(Partitioned)
    assert jax.tree.leaves(fns.state.params)
    assert "1 variables of the model name a layout of their own" in said()


@pytest.mark.parametrize(
    "collective",
    [
        lambda x, name: jax.lax.pmax(x, name),
        lambda x, name: jax.lax.all_gather(x, name).mean(),
        lambda x, name: jax.lax.scan(lambda c, _: (jax.lax.pmean(c, name), None), x, None, 2)[0],
    ],
    ids=["pmax", "all_gather", "in a loop"],
)
def test_the_axis_of_a_batch_stands_for_all_data_axes(collective):
    def apply(params, model_state, batch, key, train):
        return jnp.stack([collective(batch.sum(), DATA_AXES), collective(batch.sum(), "batch")])

    model = surroundings.fitted(Model(lambda *_: ({}, {}), apply))
    run = lambda x: model.apply({}, {}, x, jax.random.key(0), True)
    ours, theirs = shard_over_data(run, mesh_of(8, replica=2), P(DATA_AXES), P())(np.arange(8, dtype=np.float32))
    assert float(ours) == float(theirs) > 0


@jax.custom_vjp
def averaged(x):
    return jax.lax.pmean(x, "batch")


averaged.defvjp(lambda x: (averaged(x), None), lambda _, grad: (jax.lax.pmean(grad, "batch"),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda loss: jax.lax.pmean(loss, "experts"), r"the loss names the axis 'experts' \(.*test_surroundings.*line"),
        (averaged, r"a function with a derivative of its own names an axis .*write \('replica', 'shard'\) there"),
        (
            lambda loss: loss * jax.lax.axis_index("batch").astype(loss.dtype),
            r"the index of a device along 'batch' .* jzero\.axis_index",
        ),
    ],
    ids=["unknown", "derivative", "index"],
)
def test_axes_that_cannot_be_bound_are_said(change, message):
    with pytest.raises(ModelError, match=message):
        traced(Net(), lambda model, batch: change(squared_error(model, batch)))


@pytest.mark.parametrize(
    "between",
    [
        lambda x: jnp.einsum("bi,ij->bj", x, jnp.eye(32), out_sharding=P("data")),
        lambda x: jax.shard_map(lambda x: x, mesh=MESH, in_specs=P(None, "data"), out_specs=P(None, "data"))(x),
    ],
    ids=["out_sharding", "shard_map"],
)
def test_layouts_that_cannot_be_left_out_are_said(between):
    with pytest.raises(ModelError, match=r"lays arrays out over a mesh of its own \(.*test_surroundings.*do without"):
        traced(Net(between))


def test_a_model_that_computes_with_meshes_keeps_its_own_errors():
    def refuse(x):
        raise ValueError("the mesh has 3 faces")

    with pytest.raises(ValueError, match=r"^the mesh has 3 faces"):
        traced(Net(refuse))
