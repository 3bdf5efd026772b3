"""The samples of a step stay what they were when a launcher starts a run again with more or fewer devices."""

import re
from collections.abc import Mapping

import jax

from jzero.config import RunConfig
from jzero.config.resolve.batch import NAMES, fitting_micros
from jzero.engine import Engine
from jzero.errors import ConfigError
from jzero.launch.heartbeat import BATCH, MICRO, tell


def tell_sizes(engine: Engine) -> None:
    """Tells the launcher, if there is one, what it is to keep."""
    config = engine.config
    sizes = {"batch": config.train_batch_size, "micro": config.train_micro_batch_size_per_gpu}
    tell({**sizes, "devices": jax.device_count()})


def keeping_batch(config: RunConfig, environment: Mapping[str, str], world: int) -> RunConfig:
    """A run whose steps take the samples that the launcher names, or the run as it is if that names none.

    Args:
        config: a run file.
        environment: the variables.
        world: data shards there are now.

    Returns:
        The run, with other sizes of micro-batch and accumulation where they need to be, which a note says. Where
        `elasticity` is on, the micro-batch is one of its `micro_batch_sizes`.

    Raises:
        ConfigError: the samples cannot be divided among the data shards.
    """
    total, micro = environment.get(BATCH, ""), environment.get(MICRO, "")
    elastic = config.deepspeed.elasticity
    if not (re.fullmatch("[0-9]+", total) and re.fullmatch("[0-9]+", micro)):
        return config
    chosen = elastic if elastic is not None and elastic.enabled is True else None
    try:
        fitting = fitting_micros(int(total), chosen.micro_batch_sizes if chosen else range(1, int(micro) + 1), world)
    except ConfigError as error:
        raise ConfigError(f"{BATCH}, which the first start of this run had: {error}") from None
    larger = chosen is None or chosen.prefer_larger_batch or chosen.version < 0.2
    size = fitting[-1] if larger else fitting[0]
    rounds = int(total) // (size * world)
    arguments = {"per_device_train_batch_size": size, "gradient_accumulation_steps": rounds}
    note = f"a step keeps its {total} samples on {world} data shards: {size} a device x {rounds} micro-batches"
    values = {
        **dict(zip(NAMES, (int(total), size, rounds), strict=True)),
        **({"elasticity.enabled": False} if chosen else {}),
    }
    return config.model_copy(
        update={
            "training_arguments": config.training_arguments.model_copy(update=arguments),
            "deepspeed": config.deepspeed.replaced(values, origin="the first start of this run", note=note),
        }
    )
