"""The batch arithmetic, against DeepSpeed's table."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jzero.config import Config
from jzero.config.resolve.batch import resolve_batch
from jzero.errors import ConfigError


@pytest.mark.parametrize(
    ("sizes", "world", "expected"),
    [
        ((32, 16, 1), 2, (32, 16, 1)),
        ((32, 8, 2), 2, (32, 8, 2)),
        ((32, 8, None), 2, (32, 8, 2)),
        ((32, None, 2), 2, (32, 8, 2)),
        ((None, 8, 2), 2, (32, 8, 2)),
        ((32, None, None), 2, (32, 16, 1)),
        ((None, 8, None), 2, (16, 8, 1)),
    ],
)
def test_what_is_not_given_is_derived(sizes, world, expected):
    assert resolve_batch(*sizes, world=world) == expected


@pytest.mark.parametrize(
    ("sizes", "world"),
    [((33, 17, 2), 2), ((32, 18, 1), 2), ((4, None, None), 8), ((32, 5, None), 2), ((30, None, 4), 2)],
)
def test_what_does_not_fit_is_refused_with_the_numbers(sizes, world):
    with pytest.raises(ConfigError) as error:
        resolve_batch(*sizes, world=world)
    text = str(error.value)
    for value in sizes:
        assert "not given" in text if value is None else f"= {value}" in text
    assert f"{world} data shards" in text
    assert "the nearest `train_batch_size` that fits is" in text


def test_the_text_of_an_indivisible_batch():
    config = Config.load({"train_batch_size": 30, "train_micro_batch_size_per_gpu": 2}, file="ds.json")
    with pytest.raises(ConfigError) as error:
        config.resolve(world=8)
    assert str(error.value) == (
        "ds.json: `train_batch_size` = 30, `train_micro_batch_size_per_gpu` = 2, "
        "`gradient_accumulation_steps` = not given do not fit 8 data shards, because train_batch_size must be "
        "train_micro_batch_size_per_gpu x gradient_accumulation_steps x 8; "
        "the nearest `train_batch_size` that fits is 16 or 32"
    )


@pytest.mark.parametrize(
    ("sizes", "advice"),
    [
        ((32, 4, 3), "is 96, or keep 32 with `gradient_accumulation_steps` = 1"),
        ((32, 8, 2), "is 128, or keep 32 with `train_micro_batch_size_per_gpu` = 2"),
        ((64, 4, 4), "is 128, or keep 64 with `train_micro_batch_size_per_gpu` = 2 or with `gradient_accumulation_st"),
        ((40, None, 3), "is 24 or 48, or keep 40 with `gradient_accumulation_steps` = 1"),
        ((40, 3, None), "is 24 or 48, or keep 40 with `train_micro_batch_size_per_gpu` = 1"),
        ((2**31 - 8, 7, None), "or keep 2147483640 with `train_micro_batch_size_per_gpu` = 5"),  # at once
    ],
)
def test_what_else_would_fit_is_offered(sizes, advice):
    with pytest.raises(ConfigError) as error:
        resolve_batch(*sizes, world=8)
    assert advice in str(error.value)


def test_a_step_takes_no_more_samples_than_32_bits_count():
    with pytest.raises(ConfigError, match="are 4294967296 samples per step; a step takes at most 2147483647"):
        resolve_batch(None, 2**16, 2**13, world=8)


@pytest.mark.parametrize("sizes", [{}, {"gradient_accumulation_steps": 4}])
def test_a_total_or_a_micro_batch_is_needed(sizes):
    with pytest.raises(ConfigError, match="give `train_batch_size` or `train_micro_batch_size_per_gpu`"):
        Config.load(sizes).resolve(world=2)


size = st.none() | st.integers(1, 200)


@given(total=size, micro=size, accumulation=size, world=st.integers(1, 17))
def test_what_resolves_fits_and_keeps_what_was_given(total, micro, accumulation, world):
    given_sizes = (total, micro, accumulation)
    try:
        resolved = resolve_batch(*given_sizes, world=world)
    except ConfigError as error:
        text = str(error)
        if "nearest" not in text:
            return
        nearest = int(text.split("that fits is ")[1].split()[0].rstrip(","))
        assert resolve_batch(nearest, micro, accumulation, world=world)  # the advice works
        kept = text.partition("or keep ")[2]
        for name, size in re.findall(r"`(\w+)` = (\d+)", kept):
            sizes = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": accumulation}
            assert resolve_batch(total, *{**sizes, name: int(size)}.values(), world=world)[0] == total
        return
    assert resolved[0] == resolved[1] * resolved[2] * world
    assert all(g is None or g == r for g, r in zip(given_sizes, resolved, strict=True))
