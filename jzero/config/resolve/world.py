"""The number of devices that a file was written for, where nobody says how many there are."""

from typing import NamedTuple

from jzero.config.resolve.batch import NAMES
from jzero.config.resolve.elastic import elastic_worlds
from jzero.config.schema.scalars import is_auto
from jzero.config.schema.top_level import TopLevel

USUAL = 8
"""Devices of a node."""


class World(NamedTuple):
    """A number of devices that take different data.

    Attributes:
        size: how many.
        origin: why so many, as the end of a sentence.
    """

    size: int
    origin: str

    @property
    def sentence(self) -> str:
        """Where the number comes from, for people.

        >>> World(12, "fit the batch sizes").sentence
        'No number of devices was given: 12 data shards fit the batch sizes.'
        """
        return f"No number of devices was given: {self.size} data shards {self.origin}."


def candidate_worlds(config: TopLevel) -> list[World]:
    """Numbers of devices that a configuration may fit, the likeliest first.

    Args:
        config: its batch sizes, `data_parallel_size`, `elasticity` and the sizes of groups are read.

    Example:
        >>> from jzero.config import Config
        >>> sizes = {"train_batch_size": 96, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
        >>> candidate_worlds(Config.load(sizes))[0]
        World(size=12, origin='fit the batch sizes')
    """
    found: list[World] = []
    size = config.data_parallel_size
    if size is not None and not is_auto(size):
        found.append(World(size, "fit `data_parallel_size`"))
    if config.elasticity is not None and config.elasticity.enabled is True:
        near = sorted(elastic_worlds(config.elasticity), key=lambda n: (abs(n - USUAL), n))
        found += [World(n, "fit `elasticity`") for n in near[:1]]
    sizes = [getattr(config, name) for name in NAMES]
    total, micro, accumulation = (n if isinstance(n, int) else None for n in sizes)
    if total and micro and accumulation and total % (micro * accumulation) == 0:
        found.append(World(total // (micro * accumulation), "fit the batch sizes"))
    found.append(World(USUAL, "are usual"))
    rows = total // ((micro or 1) * (accumulation or 1)) if total else 0
    found += [World(n, "fit the batch sizes") for n in range(USUAL, 0, -1) if rows and rows % n == 0]
    zero = config.zero_optimization
    for key, group in (("mics_shard_size", zero.shard_group), ("zero_hpz_partition_size", zero.hpz_group)):
        found += [World(group * n, f"fit `zero_optimization.{key}`") for n in range(1, 9) if group]
    divisors = [n for n in range(USUAL, 0, -1) if total and total % n == 0]
    return [*found, World(divisors[0] if divisors else USUAL, "are tried")]  # where none fits, it says why not
