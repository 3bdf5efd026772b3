"""`jzero.remat` and `activation_checkpointing`: other memory, the same training."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import primitives

import jzero
from jzero.explain.parameters import explain
from jzero.jaxpr import inner_jaxprs, subprogram
from jzero.jaxpr.policies import POLICIES
from jzero.models import GPT, GPTConfig, GPTLinen, next_token_loss
from jzero.models.losses import linen_next_token_loss
from tests.helpers import config, mesh_of

D, LAYERS, ROWS = 8, 3, 16
X = np.random.default_rng(0).standard_normal((ROWS, D)).astype(np.float32)
BATCH = {"x": X, "y": X[:, :1]}


class Block(nnx.Module):
    """Called with a keyword and a Python value, and with state of three kinds."""

    def __init__(self, rngs):
        self.dense = nnx.Linear(D, D, rngs=rngs)
        self.norm = nnx.BatchNorm(D, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.calls = nnx.BatchStat(jnp.zeros(()))

    def __call__(self, x, *, scale=1.0, residual="add"):
        self.calls[...] += 1.0
        y = jnp.tanh(self.drop(self.norm(self.dense(x)))) * scale
        return x + y if residual == "add" else y


class Wide(Block):
    pass


class Net(nnx.Module):
    def __init__(self, rngs, scanned=False, block=Block):
        self.scanned = scanned
        if scanned:
            self.h = nnx.split_rngs(splits=LAYERS)(nnx.vmap(block))(rngs)
        else:
            self.h = nnx.List([block(rngs) for _ in range(LAYERS)])
        self.out = nnx.Linear(D, 1, rngs=rngs)

    def __call__(self, x):
        if self.scanned:
            x = nnx.scan(lambda b, x: b(x, scale=2.0), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.h, x)
        else:
            for block in self.h:
                x = block(x, scale=2.0)
        return self.out(x)


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, *, scale=1.0, residual="add"):
        y = nn.Dropout(0.5, deterministic=False)(nn.BatchNorm(use_running_average=False)(nn.Dense(D)(x)))
        self.sow("intermediates", "y", y)
        return x + jnp.tanh(y) * scale if residual == "add" else y


class LinenNet(nn.Module):
    scanned: bool = False

    @nn.compact
    def __call__(self, x):
        if self.scanned:
            scan = nn.scan(
                lambda block, x, _: (block(x, scale=2.0), None),
                variable_axes={"params": 0, "batch_stats": 0, "intermediates": 0},
                split_rngs={"params": True, "dropout": True},
                length=LAYERS,
            )
            x, _ = scan(LinenBlock(name="h"), x, None)
        else:
            for _ in range(LAYERS):
                x = LinenBlock()(x, scale=2.0)
        return self.head(x)

    def head(self, x):
        return nn.Dense(1, name="out")(x)


def nnx_function(model):
    """The loss of an NNX factory as a function of parameters, which are dictionaries; new state comes with it."""
    graphdef, params, rest = nnx.split(model(nnx.Rngs(0)), nnx.Param, ...)
    as_params = jax.tree.structure(params)

    def loss(params):
        module = nnx.merge(graphdef, as_params.unflatten(jax.tree.leaves(params)), rest, copy=True)
        value = (module(X) ** 2).mean()
        return value, nnx.to_pure_dict(nnx.state(module, (nnx.BatchStat, nnx.RngCount)))

    return loss, nnx.to_pure_dict(params)


RNGS = {"params": jax.random.key(0), "dropout": jax.random.key(1)}


def linen_function(model):
    def loss(variables):
        y, changed = model.apply(variables, X, rngs=RNGS, mutable=True)
        return (y**2).mean(), changed

    return loss


def results(model):
    if isinstance(model, nn.Module):
        loss, params = linen_function(model), jax.jit(model.init)(RNGS, X)
    else:
        loss, params = nnx_function(model)
    grad = jax.jit(jax.value_and_grad(loss, has_aux=True))
    return params, grad(params)


def regions(model):
    """The rematerialised regions of the loss, and those inside them."""
    if isinstance(model, nn.Module):
        loss, params = linen_function(model), jax.eval_shape(model.init, RNGS, X)
    else:
        loss, params = nnx_function(model)
    return list(regions_of(jax.make_jaxpr(loss)(params)))


def regions_of(program):
    for eqn in subprogram(program).jaxpr.eqns:
        if eqn.primitive is primitives.remat_p:
            yield eqn
        for inner in inner_jaxprs(eqn):
            yield from regions_of(inner)


def assert_same(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(lambda a, b: close(a, b), actual, expected)


MODELS = {
    "nnx": (Net, "Block"),
    "nnx, scanned": (lambda rngs: Net(rngs, scanned=True), "Block"),
    "linen": (LinenNet(), "LinenBlock"),
    "linen, scanned": (LinenNet(scanned=True), "LinenBlock"),
}


@functools.cache
def plain_results(name):
    return results(MODELS[name][0])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", [None, "offload"])
def test_parameters_loss_gradients_and_state_stay_the_same(name, policy):
    model, block = MODELS[name]
    params, outcome = results(jzero.remat(model, block, policy))
    expected_params, expected = plain_results(name)
    assert_same(params, expected_params)
    assert_same(outcome, expected)


@pytest.mark.parametrize("name", MODELS)
def test_each_block_is_a_region_with_the_policy_and_nothing_else_is(name):
    model, block = MODELS[name]
    assert not regions(model)
    for policy, meaning in POLICIES.items():
        found = regions(jzero.remat(model, block, policy))
        assert [eqn.params["policy"] for eqn in found] == [meaning] * (1 if "scanned" in name else LAYERS)
        products = [str(eqn.params["jaxpr"]).count("dot_general") for eqn in found]
        assert products == [1] * len(found)


@pytest.mark.parametrize(
    ("modules", "n_regions"),
    [
        (nnx.Linear, LAYERS + 1),
        (Block, LAYERS),  # of which Wide is one
        (Wide, LAYERS),
        ("Wide", LAYERS),
        (r"h\.[01]", 2),
        (r"h\.\d\.norm", LAYERS),
        (["BatchNorm", nnx.Dropout, "out"], 2 * LAYERS + 1),
        (r"h\.0(\..*)?", 4),  # a block and the modules in it
        ("Net", 1),
    ],
)
def test_modules_are_chosen_by_class_by_name_and_by_path(modules, n_regions):
    model = jzero.remat(lambda rngs: Net(rngs, block=Wide), modules)
    assert len(regions(model)) == n_regions


LINEN_PATHS = ["LinenBlock_0", "LinenBlock_1.Dense_0", "LinenBlock_2.BatchNorm_0", "LinenBlock_2.Dropout_0", "out"]


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.sets(st.sampled_from(LINEN_PATHS), min_size=1))
def test_linen_modules_are_chosen_by_path(paths):
    found = regions(jzero.remat(LinenNet(), map(re.escape, paths)))
    assert len(found) == len(paths)
    products = sum("dot_general" in str(eqn.params["jaxpr"]) for eqn in found)
    assert products == len(paths & {"LinenBlock_0", "LinenBlock_1.Dense_0", "out"})


def test_the_model_given_stays_as_it_was():
    module = Net(nnx.Rngs(0))
    copy = jzero.remat(module, "Block")
    before = jax.tree.map(np.array, nnx.state(module, nnx.BatchStat))
    copy(X)
    assert type(module.h[0]) is Block
    jax.tree.map(np.testing.assert_array_equal, nnx.state(module, nnx.BatchStat), before)
    assert copy.out.kernel[...] is module.out.kernel[...]
    assert len(regions(lambda rngs: copy)) == LAYERS
    linen = LinenNet()
    assert isinstance(jzero.remat(linen, "LinenBlock"), LinenNet)
    assert not regions(linen)


@pytest.mark.parametrize("name", ["nnx", "linen"])
def test_choices_add_up_and_the_last_one_for_a_module_counts(name):
    model, block = MODELS[name]
    model = jzero.remat(jzero.remat(jzero.remat(model, block), "out"), block, "dots_saveable")
    dots = POLICIES["dots_saveable"]
    assert [eqn.params["policy"] for eqn in regions(model)] == [*[dots] * LAYERS, None]


def test_a_loss_may_call_a_linen_model_by_other_methods():
    class Twice(LinenNet):
        def loss(self, x):
            return (self(x) ** 2).mean()

    model = jzero.remat(Twice(), "LinenBlock")
    run = lambda v: model.apply(v, X, rngs=RNGS, mutable=True, method="loss")
    assert len(list(regions_of(jax.make_jaxpr(run)(jax.eval_shape(model.init, RNGS, X))))) == LAYERS


@pytest.mark.parametrize(
    ("choose", "sentence"),
    [
        (
            lambda: jzero.remat(Net, "Blok")(nnx.Rngs(0)),
            r"no module is 'Blok'.*the model has .*Block \(h\.0, h\.1, h\.2",
        ),
        (lambda: jzero.remat(Net, ["Block", r"h\.7"])(nnx.Rngs(0)), r"no module is 'h\\\\.7'"),
        (lambda: jzero.remat(Net, nnx.Conv)(nnx.Rngs(0)), "no module is Conv"),
        (lambda: regions(jzero.remat(LinenNet(), "Blok")), "no module is 'Blok'.*LinenBlock_1"),
        (lambda: jzero.remat(Net, "h.("), "no regular expression"),
        (lambda: jzero.remat(Net, []), "modules is empty"),
        (lambda: jzero.remat(Net, [Block, 3]), "not 3"),
        (lambda: jzero.remat(Net, "Block", "save_only_these_names"), "no policy is named.*nothing_saveable"),
        (lambda: jzero.remat(LinenNet, "LinenBlock"), "type LinenNet"),
        (lambda: jzero.remat({"w": 1}, "Block"), "the model is dict, not a Flax module"),
    ],
)
def test_what_does_not_fit_is_one_sentence(choose, sentence):
    with pytest.raises(jzero.ModelError, match=f"^remat: .*{sentence}") as raised:
        choose()
    assert "\n" not in str(raised.value)


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(D, 2 * D, rngs=rngs), nnx.Linear(2 * D, D, rngs=rngs)

    def __call__(self, x, scale):
        return x + self.down(jnp.tanh(self.up(x))) * scale


def squares(model, batch):
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()


REMAT = {"jzero": {"remat": {"modules": ["Layer"]}}}
SGD = {"type": "SGD", "params": {"lr": 0.1}}
ON_HOST = {"activation_checkpointing": {"cpu_checkpointing": True}}


def built(stage, scanned, **sections):
    return jzero.functional(
        model=lambda rngs: Net(rngs, scanned, Layer),
        loss_fn=squares,
        config=jzero.Config.load(config(stage, ROWS, optimizer=SGD, **sections)).resolve(world=2),
        sample_batch=BATCH,
        mesh=mesh_of(2),
    )


def trained(fns, state):
    state = jax.tree.map(jnp.copy, state)  # a step takes its memory
    batch = jax.tree.map(lambda x, like: jax.device_put(x[None], like.sharding), BATCH, fns.batch)
    for _ in range(2):
        state, metrics = fns.step(state, batch)
    return state.params, metrics["loss"]


@pytest.mark.parametrize("scanned", [False, True], ids=["unrolled", "scanned"])
@pytest.mark.parametrize("api", ["nnx", "linen"])
def test_parameters_travel_as_with_the_model_s_own_option(scanned, api):
    def explained(remat, **sections):
        sizes = GPTConfig(16, 8, d_model=16, n_layer=2, n_head=2, scan_layers=scanned, remat=remat)
        fns = jzero.functional(
            model=GPTLinen(sizes) if api == "linen" else lambda rngs: GPT(sizes, rngs=rngs),
            loss_fn=linen_next_token_loss if api == "linen" else next_token_loss,
            config=jzero.Config.load(config(3, ROWS, **sections)).resolve(world=4),
            sample_batch={"tokens": np.zeros((ROWS, 9), np.int32)},
            mesh=mesh_of(4),
        )
        return explain(fns)

    assert explained(False, jzero={"remat": {"modules": ["Block"]}}) == explained(True)


@pytest.mark.parametrize(("stage", "scanned"), [(0, True), (3, False)])
def test_block_inputs_wait_in_host_memory_and_training_is_the_same(stage, scanned):
    offloading, plain = built(stage, scanned, **REMAT, **ON_HOST), built(stage, scanned)
    start = plain.init(np.uint32(0))
    assert_same(trained(offloading, start), trained(plain, start))


@pytest.mark.parametrize(("stage", "scanned"), [(0, False), (1, True), (2, False), (3, True)])
def test_only_the_input_of_each_block_goes_to_host_memory(stage, scanned):
    on_host = lambda **sections: re.findall(r"<host>\[([\d,]*)\]", step_of(built(stage, scanned, **sections)))
    rows = ROWS // 2
    inputs = {f"{rows},{D}", f"{LAYERS},{rows},{D}"} if scanned else {f"{rows},{D}"}
    assert set(on_host(**REMAT, **ON_HOST)) == inputs
    by_policy = {"jzero": {"remat": {"modules": "Layer", "policy": "offload"}}}
    assert on_host(**by_policy) == on_host(**REMAT, **ON_HOST)
    assert not on_host(**REMAT)
    keeps_more = {"jzero": {"remat": {"modules": "Layer", "policy": "dots_saveable"}}}
    assert not on_host(**keeps_more, **ON_HOST)


def step_of(fns):
    return str(fns.step.trace(fns.state, fns.batch).jaxpr)


def test_nothing_to_keep_in_host_memory_is_said():
    with pytest.warns(UserWarning, match=r"cpu_checkpointing has no effect.*jzero\.remat") as told:
        built(3, False, **ON_HOST)
    assert len({str(w.message) for w in told}) == 1


@pytest.mark.parametrize(
    ("remat", "sentence"),
    [
        ({}, "`jzero.remat.modules` is missing"),
        (
            {"modules": "Layer", "policy": "save_only_these_names"},
            "`jzero.remat.policy` must be one of nothing_saveable",
        ),
        ({"modules": ["Lair"]}, "no module is 'Lair'.*Layer"),
    ],
)
def test_what_the_configuration_cannot_have_is_one_sentence(remat, sentence):
    with pytest.raises(jzero.JzeroError, match=sentence):
        built(3, False, jzero={"remat": remat})


def test_each_key_without_effect_says_why():
    keys = {
        "partition_activations": "model-parallel group",
        "number_checkpoints": "the model decides how many",
        "contiguous_memory_optimization": "XLA lays out memory",
        "synchronize_checkpoint_boundary": "one compiled program",
        "profile": "jax.profiler",
    }
    section = dict.fromkeys(keys, True) | {"number_checkpoints": 4, "cpu_checkpointing": True}
    notes = jzero.Config.load({"train_batch_size": 8, "activation_checkpointing": section}).notes
    assert len(notes) == len(keys)
    for note, (key, reason) in zip(sorted(notes), sorted(keys.items()), strict=True):
        assert note.startswith(f"`activation_checkpointing.{key}` has no effect here: ")
        assert reason in note


@pytest.mark.parametrize(("stage", "scanned"), [(3, True), (1, False)])
def test_on_a_gpu_device_memory_falls_by_the_inputs_of_the_blocks(stage, scanned):
    width, layers, rows = 512, 12, 4096

    class Deep(nnx.Module):
        def __init__(self, rngs):
            make = lambda rngs: nnx.Linear(width, width, use_bias=False, rngs=rngs)
            self.h = (
                nnx.split_rngs(splits=layers)(nnx.vmap(make))(rngs)
                if scanned
                else nnx.List([make(rngs) for _ in range(layers)])
            )

        def __call__(self, x):
            step = lambda layer, x: x + jnp.tanh(layer(x))
            if scanned:
                return nnx.scan(step, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)(self.h, x)
            for layer in self.h:
                x = step(layer, x)
            return x

    def memory(**sections):
        return jzero.plan.compile_step(
            model=Deep,
            loss_fn=lambda model, batch: (model(batch) ** 2).mean(),
            config=config(stage, 8 * rows, **sections),
            sample_batch=jax.ShapeDtypeStruct((8 * rows, width), jnp.float32),
        ).memory

    remat = {"jzero": {"remat": {"modules": "Linear"}}}
    on_device, on_host = memory(**remat), memory(**remat, **ON_HOST)
    inputs = layers * rows * width * 4
    assert on_device.host_temp == 0
    assert on_host.host_temp >= 0.9 * inputs
    assert on_host.temp < on_device.temp - 0.6 * inputs


class WithArray(nnx.Module):
    """Holds an array that is no variable."""

    def __init__(self, rngs):
        self.dense, self.shift = nnx.Linear(D, 1, rngs=rngs), nnx.data(jnp.ones(D))

    def __call__(self, x):
        return self.dense(x + self.shift)


def test_a_module_may_hold_plain_arrays():
    model = WithArray(nnx.Rngs(0))
    again = jzero.remat(model, "WithArray")
    np.testing.assert_allclose(again(X), model(X))
