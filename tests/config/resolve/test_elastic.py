"""`elasticity` against DeepSpeed's golden case and a search through everything."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jzero.config import Config
from jzero.config.resolve.elastic import best_batch, highly_composite, valid_worlds
from jzero.errors import ConfigError

GOLDEN = {
    "enabled": True,
    "max_train_batch_size": 10_000,
    "micro_batch_sizes": [8, 12, 16, 17],
    "min_gpus": 32,
    "max_gpus": 1500,
    "version": 0.1,
}


def sizes(world, elasticity=None, **keys):
    config = Config.load({"elasticity": {**GOLDEN, **(elasticity or {})}, **keys}).resolve(world=world)
    assert config.resolve(world=world) == config
    return config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps


def test_deepspeeds_golden_case():
    assert sizes(64) == (9792, 17, 9)
    batch, worlds = best_batch(GOLDEN["micro_batch_sizes"], 10_000, 32, 1500, True)
    assert (batch, len(worlds)) == (9792, 23)


@settings(max_examples=25, deadline=None)
@given(limit=st.integers(1, 300))
def test_highly_composite_numbers_against_counting(limit):
    divisors = [sum(n % d == 0 for d in range(1, n + 1)) for n in range(1, limit + 1)]
    assert highly_composite(limit) == 1 + divisors.index(max(divisors))


@settings(max_examples=25, deadline=None)
@given(batch=st.integers(1, 400), micros=st.lists(st.integers(1, 12), min_size=1, max_size=3), low=st.integers(0, 5))
def test_valid_numbers_of_devices_against_trying_all(batch, micros, low):
    fits = [w for w in range(1, 51) if any(batch % m == 0 and (batch // m) % w == 0 for m in micros)]
    assert valid_worlds(batch, micros, low, 50) == [w for w in fits if w >= low]


def test_version_2_takes_whole_nodes_and_any_number_of_devices():
    # 4 devices a node: the batch of 0.1 for a quarter of everything, times 4.
    elastic = {"version": 0.2, "max_train_batch_size": 400, "micro_batch_sizes": [2, 4], "min_gpus": 4, "max_gpus": 64}
    total, micro, accumulation = sizes(8, {**elastic, "num_gpus_per_node": 4})
    quarter, nodes = best_batch([2, 4], 100, 1, 16, True)
    assert (total, 2 in nodes) == (4 * quarter, True)
    assert total == micro * accumulation * 8
    # 7 devices divide no such batch: the largest multiple of a micro-batch on each of them.
    assert sizes(7, {**elastic, "num_gpus_per_node": 1}) == (392, 4, 14)


def test_batch_sizes_beside_it():
    with pytest.raises(ConfigError, match="`train_batch_size` cannot be given beside `elasticity`"):
        sizes(64, train_batch_size=64)
    assert sizes(64, {"ignore_non_elastic_batch_info": True}, train_batch_size=64) == (9792, 17, 9)
    assert sizes(64, {"enabled": False}, train_batch_size=64) == (64, 1, 1)


@pytest.mark.parametrize(
    ("elasticity", "sentence"),
    [
        ({}, "= 9792, which 128 data shards cannot divide.*the nearest numbers that can are 102 and 136"),
        ({"max_train_batch_size": 10}, "`elasticity.micro_batch_sizes` = .* are above `max_train_batch_size` = 10"),
        (
            {"version": 0.2, "num_gpus_per_node": 2000, "min_gpus": 1, "max_gpus": 10_000},
            "`elasticity.num_gpus_per_node` = 2000 leaves 5 samples a device of `max_train_batch_size` = 10000, fewer",
        ),
        ({"version": 0.3}, "`elasticity.version` must be 0.1 or 0.2, got 0.3"),
        ({"micro_batch_sizes": []}, "`elasticity.micro_batch_sizes` must be a list of whole numbers"),
        ({"micro_batch_sizes": [2.5]}, "`elasticity.micro_batch_sizes` must be a list of whole numbers"),
        ({"model_parallel_size": 2}, "`elasticity.model_parallel_size` is refused"),
        ({"min_gpus": 2000}, "`elasticity.min_gpus` = 2000 is above `max_gpus` = 1500: swap the two"),
    ],
)
def test_what_does_not_fit_is_a_sentence(elasticity, sentence):
    with pytest.raises(ConfigError, match=sentence):
        sizes(128, elasticity)
