"""Every key that claims to be honoured or translated has a test that shows what it does, and some have it here.

`tests/config/effects.py` names the tests. Those below read the traced training step, which takes no compilation.
"""

import ast
from collections.abc import Iterator
from fnmatch import fnmatchcase as fnmatch
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from jzero.config import Config
from jzero.config.schema.section import SectionType, sections_of
from jzero.config.schema.verdicts import HONOURED, Verdict, verdict
from jzero.errors import ConfigError
from jzero.jaxpr import inner_jaxprs
from jzero.sharding.mesh import mesh_for
from jzero.start import functional
from jzero.zero.build import Functional
from tests.config.effects import EFFECTS
from tests.helpers import mesh_of

ROOT = Path(__file__).parents[2]


def claims(cls: SectionType = Config, path: str = "", around: Verdict = HONOURED) -> Iterator[str]:
    """The keys that have an effect; those of sections with several schemas, one a type, under the schema's name."""
    for name, field in cls.model_fields.items():
        own, inner = verdict(field, around), sections_of(field.annotation)
        if not inner and own.kind in ("honoured", "translated"):
            yield path + name
        for section in inner:
            yield from claims(section, f"{path}{name}." if len(inner) == 1 else f"{section.__name__}.", own)


def test_every_key_with_an_effect_names_the_test_that_shows_it():
    named = [key for tests in EFFECTS.values() for keys in tests.values() for key in keys.split()]
    claimed = list(claims())
    assert sorted(key for key in claimed if not any(fnmatch(key, name) for name in named)) == []
    assert sorted(name for name in named if not any(fnmatch(key, name) for key in claimed)) == []


def test_the_named_tests_exist():
    for file, tests in EFFECTS.items():
        tree = ast.parse((ROOT / file).read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert sorted(tests.keys() - defined) == [], file


class Stack(nnx.Module):
    """Four leaves: three weights of 256 elements and a small one."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(16, 16, use_bias=False, rngs=rngs) for _ in range(3)])
        self.scale = nnx.Param(jnp.ones(8, jnp.float32))

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x * self.scale[...].sum()


def build(mesh: Mesh | None = None, **sections) -> Functional:
    config = Config.load({"optimizer": {"type": "AdamW"}, **sections}).resolve(world=8)
    batch = {"x": jax.ShapeDtypeStruct((config.train_batch_size, 16), jnp.float32)}
    loss = lambda model, batch: (model(batch["x"]) ** 2).mean()
    return functional(model=Stack, loss_fn=loss, config=config, sample_batch=batch, mesh=mesh or mesh_of(8))


def order(**zero) -> str:
    """The step under ZeRO-3 as a word: g for a gather, d for a matrix product, s for a scatter."""
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0, **zero}
    built = build(train_batch_size=8, zero_optimization=zero)
    letters = {"all_gather": "g", "dot_general": "d", "reduce_scatter": "s"}

    def walk(jaxpr) -> str:
        return "".join(letters.get(e.primitive.name, "") + "".join(map(walk, inner_jaxprs(e))) for e in jaxpr.eqns)

    return walk(built.step.trace(built.state, built.batch).jaxpr.jaxpr)


@pytest.mark.parametrize(("elements", "ahead"), [(0, 1), (1, 2), (257, 3), (10**6, 4)])
def test_a_gather_starts_ahead_while_fewer_elements_than_the_prefetch_bucket_are_on_their_way(elements, ahead):
    word = order(stage3_prefetch_bucket_size=elements)
    assert word.index("d") == ahead
    assert word.count("g") == 4  # each parameter is gathered once, and kept


def test_a_parameter_used_again_beyond_the_reuse_distance_is_gathered_again():
    # The last leaf is used again at once. Between the two uses of a weight lie those of the later leaves, and its own.
    distances = [0, *(2 * 8 + 512 * later + 256 for later in range(3))]
    assert [order(stage3_max_reuse_distance=elements).count("g") for elements in distances] == [7, 6, 5, 4]


def test_few_live_parameters_leave_no_room_to_keep_one_or_to_gather_it_ahead():
    word = order(stage3_max_live_parameters=0)
    assert (word.index("d"), word.count("g")) == (1, 7)


@pytest.mark.parametrize(("threshold", "gathers"), [(7, 4), (8, 3), (256, 0)])
def test_leaves_up_to_the_persistence_threshold_are_never_gathered(threshold, gathers):
    assert order(stage3_param_persistence_threshold=threshold).count("g") == gathers


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ({"train_batch_size": 48, "gradient_accumulation_steps": 3}, (3, 16, 16)),
        ({"train_batch_size": 48, "train_micro_batch_size_per_gpu": 2}, (3, 16, 16)),
        ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}, (2, 24, 16)),
    ],
)
def test_the_batch_sizes_are_those_of_the_step(sizes, shape):
    assert build(**sizes).batch["x"].shape == shape  # micro-batches, rows of one over all devices


def test_summed_gradients_are_as_many_times_the_mean_as_there_are_devices():
    def norm(op: str) -> float:
        built = build(train_batch_size=8, gradient_allreduce_op=op)
        batch = {"x": np.random.default_rng(0).standard_normal((1, 8, 16), np.float32)}
        return float(built.step(built.init(0), batch)[1]["grad_norm"])

    assert norm("sum") == pytest.approx(8 * norm("mean"), rel=1e-5)


def test_a_mics_group_shares_one_copy_of_the_state():
    config = Config.load({"zero_optimization": {"stage": 3, "mics_shard_size": 4}})
    assert dict(mesh_for(config, jax.devices()[:8]).shape) == {"replica": 2, "shard": 4, "tensor": 1}
    zero = {"stage": 3, "mics_shard_size": 4, "stage3_param_persistence_threshold": 0}
    built = build(mesh_for(config, jax.devices()[:8]), train_batch_size=8, zero_optimization=zero)
    assert {x.sharding.shard_shape(x.shape)[0] for x in jax.tree.leaves(built.state.params)} == {16 // 4, 8 // 4}


@pytest.mark.parametrize("by_key", [True, False])
def test_two_levels_divide_the_state_over_all_devices(by_key):
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0} | ({"zero_hpz_partition_size": 4} if by_key else {})
    sections = {"zero_optimization": zero, **({} if by_key else {"jzero": {"two_level": "auto"}})}
    mesh = mesh_for(Config.load(sections), jax.devices()[:8])
    assert dict(mesh.shape) == {"replica": 2 if by_key else 1, "shard": 4 if by_key else 8, "tensor": 1}
    built = build(mesh_of(8, 2), train_batch_size=8, **sections)
    assert {x.sharding.shard_shape(x.shape)[0] for x in jax.tree.leaves(built.state.params)} == {16 // 8, 8 // 8}
    assert built.spec.two_level


def test_data_parallel_size_must_be_the_number_of_devices_that_take_different_data():
    build(train_batch_size=8, data_parallel_size=8)
    with pytest.raises(ConfigError, match="`data_parallel_size` = 4, but 8 devices take different data"):
        build(train_batch_size=8, data_parallel_size=4)


ELASTIC = {"enabled": True, "max_train_batch_size": 400, "micro_batch_sizes": [2, 4], "max_gpus": 64, "version": 0.2}
BY_DEVICE = {"max_train_batch_size": 10_000, "micro_batch_sizes": [8, 12, 16, 17], "max_gpus": 1500, "version": 0.1}


@pytest.mark.parametrize(
    ("without", "with_it"),
    [
        ({}, {"enabled": False}),
        ({}, {"max_train_batch_size": 200}),
        ({}, {"micro_batch_sizes": [3, 5]}),
        (BY_DEVICE, {"min_gpus": 32}),
        ({}, {"max_gpus": 8}),
        ({}, {"num_gpus_per_node": 4}),
        ({}, {"prefer_larger_batch": False}),
        ({}, {"version": 0.1}),
    ],
    ids=lambda keys: next(iter(keys), ""),
)
def test_elasticity_decides_the_batch_sizes(without, with_it):
    def sizes(**keys) -> tuple[int, int] | None:
        elasticity = {**ELASTIC, **keys}
        batch = {} if elasticity["enabled"] else {"train_batch_size": 8}
        try:
            config = Config.load({"elasticity": elasticity, **batch}).resolve(world=8)
        except ConfigError:
            return None
        return config.train_batch_size, config.train_micro_batch_size_per_gpu

    assert sizes(**without) is not None
    assert sizes(**without) != sizes(**without, **with_it)
