"""A launcher's later attempts keep the samples of a step, whatever the file says of devices."""

from pathlib import Path

import pytest

from jzero.config import load_run
from jzero.errors import ConfigError
from jzero.train.kept_batch import keeping_batch

TINY = Path(__file__).parents[2] / "configs/tiny.json"
TOLD = {"JZERO_TRAIN_BATCH_SIZE": "32", "JZERO_MICRO_BATCH_SIZE": "4"}


def sizes(run, world: int) -> tuple[int, int, int]:
    resolved = run.deepspeed.resolve(world=world, training_arguments=run.training_arguments, partly=True)
    return (
        resolved.train_batch_size,
        resolved.train_micro_batch_size_per_gpu,
        resolved.gradient_accumulation_steps,
    )


@pytest.mark.parametrize(("world", "micro", "rounds"), [(8, 4, 1), (4, 4, 2), (2, 4, 4), (16, 2, 1), (32, 1, 1)])
def test_micro_batches_and_rounds_follow_the_devices(world, micro, rounds):
    run = keeping_batch(load_run(TINY), TOLD, world)
    assert sizes(run, world) == (32, micro, rounds)
    assert f"a step keeps its 32 samples on {world} data shards: {micro} a device" in " ".join(run.deepspeed.notes)


def test_sizes_that_the_file_gives_are_kept_in_all():
    given = ["deepspeed.train_micro_batch_size_per_gpu=2", "training_arguments.per_device_train_batch_size=2"]
    run = load_run(TINY, [*given, "deepspeed.gradient_accumulation_steps=2"])
    assert sizes(run, 8) == (32, 2, 2)
    assert sizes(keeping_batch(run, {**TOLD, "JZERO_MICRO_BATCH_SIZE": "2"}, 4), 4) == (32, 2, 4)


def test_nothing_changes_where_no_launcher_says_so():
    run = load_run(TINY)
    assert keeping_batch(run, {}, 4) is run


@pytest.mark.parametrize(("version", "world", "micro", "rounds"), [(0.1, 4, 4, 1), (0.2, 2, 4, 2), (0.2, 8, 2, 1)])
def test_elasticity_names_the_micro_batches(version, world, micro, rounds):
    section = {"enabled": True, "max_train_batch_size": 32, "micro_batch_sizes": [2, 4], "min_gpus": 1, "max_gpus": 8}
    run = load_run({"model": {"family": "gpt"}, "deepspeed": {"elasticity": {**section, "version": version}}})
    kept = keeping_batch(run, {**TOLD, "JZERO_TRAIN_BATCH_SIZE": "16"}, world)
    assert sizes(kept, world) == (16, micro, rounds)


def test_samples_that_cannot_be_divided_are_refused():
    says = "`train_batch_size` = 32 cannot be divided among 3 data shards in micro-batches of 1 to 4"
    with pytest.raises(ConfigError, match=says):
        keeping_batch(load_run(TINY), TOLD, 3)
