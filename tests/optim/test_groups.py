"""Parameter groups: what an entry changes for the parameters whose names match, whatever the optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jzero.config import Config
from jzero.errors import ConfigError
from jzero.optim import build_optimizer

KINDS = ["AdamW", "Lamb", "Lion", "Muon", "SGD", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop"]
RNG = np.random.default_rng(0)
NAMES = ["plain", "small", "slow", "both"]
WEIGHTS = {name: {"kernel": jnp.asarray(RNG.standard_normal((2, 3)), jnp.float32)} for name in NAMES}
GRADS = [{n: {"kernel": jnp.asarray(RNG.standard_normal((2, 3)), jnp.float32)} for n in NAMES} for _ in range(3)]
GROUPS = [
    {"match": "^both", "weight_decay": 0.25, "lr_multiplier": 0.5},
    {"match": "small|both", "weight_decay": 0.0},  # the entry before it has taken `both`
    {"match": r"^slow\.kernel$", "lr_multiplier": 0.5},
]


def config_of(kind, lr, decay, groups=()):
    params = {"lr": lr, "weight_decay": decay}
    sections = {"optimizer": {"type": kind, "params": params}, "jzero": {"param_groups": list(groups)}}
    return Config.load({"train_batch_size": 8, **sections})


def run(config, parameters=None):
    optimizer, weights = build_optimizer(config, parameters=parameters).transformation, WEIGHTS
    state = optimizer.init(weights)
    for grads in GRADS:
        updates, state = optimizer.update(grads, state, weights)
        weights = optax.apply_updates(weights, updates)
    return weights, state


def grouped(kind, groups):
    config = Config.load({"optimizer": {"type": kind}, "jzero": {"param_groups": groups}})
    return build_optimizer(config, parameters={f"{name}.kernel": () for name in NAMES})


EXPECTED = {"plain": (0.02, 0.5), "small": (0.02, 0.0), "slow": (0.01, 0.5), "both": (0.01, 0.25)}


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_trains_like_an_optimizer_of_its_own(kind):
    with jax.numpy_dtype_promotion("standard"):  # optax mixes its step count with floats
        got, state = run(config_of(kind, 0.02, 0.5, GROUPS), {f"{name}.kernel": () for name in NAMES})
        for name, (lr, decay) in EXPECTED.items():
            alone, alone_state = run(config_of(kind, lr, decay))
            np.testing.assert_allclose(got[name]["kernel"], alone[name]["kernel"], rtol=1e-6, atol=1e-7)
            assert jax.tree.structure(state) == jax.tree.structure(alone_state)  # a checkpoint fits with or without


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([{"match": "kernal", "lr_multiplier": 2}], "entry 0, match = 'kernal', matches no parameter that is trained"),
        ([{"match": "smal.kernel$", "lr_multiplier": 2}], r"there are small\.kernel"),
        (
            [{"match": "a", "lr_multiplier": 2}, {"match": "small", "weight_decay": 0}],
            r"entry 1, match = 'small', matches only parameters that entries before it take, such as small\.kernel",
        ),
        ([{"match": "(", "lr_multiplier": 2}], r"is wrong in entry 0: `match` = '\(' is no regular expression"),
        ([{"match": "a"}], "`match` = 'a' changes nothing: add `weight_decay` or `lr_multiplier`"),
        ([{"weight_decay": 0}], "`match` is missing: a regular expression"),
        ([{"match": "a", "weight_decy": 0}], "unknown key `weight_decy`; did you mean `weight_decay`"),
        ([{"match": "a", "weight_decay": -1}], "`weight_decay` must be a number between 0 and"),
        (["a"], "must be a list of objects, got 'a' as entry 0"),
        ({"match": "a"}, "`jzero.param_groups` must be a list of objects"),
    ],
)
def test_an_entry_that_changes_nothing_or_is_wrong_is_refused(groups, message):
    with pytest.raises(ConfigError, match=message):
        grouped("SGD", groups)


def test_rprop_has_nothing_to_change():
    with pytest.raises(ConfigError, match="Rprop has neither a weight decay nor a learning rate"):
        grouped("Rprop", GROUPS[1:])


def test_entries_survive_being_resolved():
    config = config_of("AdamW", 0.02, 0.5, GROUPS).resolve(world=8)
    assert [(g.match, g.weight_decay, g.lr_multiplier) for g in config.jzero.param_groups] == [
        ("^both", 0.25, 0.5),
        ("small|both", 0.0, 1.0),
        (r"^slow\.kernel$", None, 0.5),
    ]
