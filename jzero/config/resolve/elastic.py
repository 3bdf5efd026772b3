"""`elasticity`: the batch size that most numbers of devices can train with, as DeepSpeed finds it.

A batch size that has many divisors fits many numbers of devices. So candidates are the micro-batch sizes and their
least common multiple, each times the largest highly composite number that keeps it under the cap.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

from jzero.base.types import Json
from jzero.config.schema.sections import Elasticity
from jzero.errors import ConfigError

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)


def highly_composite(limit: int) -> int:
    """The largest number up to `limit` that has more divisors than every smaller one.

    >>> highly_composite(10), highly_composite(1250), highly_composite(720720)
    (6, 840, 720720)
    """
    most, best = 0, 1
    for number, divisors in sorted(_smooth(limit, _PRIMES, limit)):
        if divisors > most:
            most, best = divisors, number
    return best


def _smooth(limit: int, primes: Sequence[int], top: int) -> Iterator[tuple[int, int]]:
    """Numbers up to `limit` with their counts of divisors, whose prime factors have exponents that do not rise."""
    yield 1, 1
    if primes:
        for exponent in takewhile(lambda e: primes[0] ** e <= limit and e <= top, range(1, limit.bit_length() + 1)):
            power = primes[0] ** exponent
            for rest, divisors in _smooth(limit // power, primes[1:], exponent):
                yield power * rest, (exponent + 1) * divisors


def valid_worlds(batch: int, micro_batches: Sequence[int], low: int, high: int) -> list[int]:
    """The numbers of devices in [low, high] that divide `batch` into whole micro-batches of one of the sizes."""
    rounds = {batch // micro for micro in micro_batches if batch % micro == 0}
    divisors = {d for r in rounds for i in range(1, math.isqrt(r) + 1) if r % i == 0 for d in (i, r // i)}
    return sorted(d for d in divisors if low <= d <= high)


def best_batch(
    micro_batches: Sequence[int], cap: int, low: int, high: int, prefer_larger: bool
) -> tuple[int, list[int]]:
    """The batch size up to `cap` with the most valid numbers of devices, and these numbers: version 0.1.

    >>> batch, worlds = best_batch([8, 12, 16, 17], cap=10_000, low=32, high=1500, prefer_larger=True)
    >>> batch, len(worlds)
    (9792, 23)
    """
    bases = {*micro_batches, math.lcm(*micro_batches)}
    candidates = {base * highly_composite(cap // base) for base in bases if base <= cap}
    worlds = {batch: valid_worlds(batch, micro_batches, low, high) for batch in candidates}
    best = max(candidates, key=lambda batch: (len(worlds[batch]), batch if prefer_larger else -batch))
    return best, worlds[best]


def elastic_batch(section: Mapping[str, Json], world: int, file: str) -> tuple[int, int]:
    """The batch sizes that an `elasticity` section gives.

    Args:
        section: Its keys, as they were given.
        world: Number of devices that take different data.
        file: What to call the configuration in messages.

    Returns:
        (`train_batch_size`, `train_micro_batch_size_per_gpu`).

    Raises:
        ConfigError: No batch size fits this number of devices.

    >>> elastic_batch(
    ...     {"max_train_batch_size": 10_000, "micro_batch_sizes": [8, 12, 16, 17], "min_gpus": 32, "max_gpus": 1500},
    ...     world=64,
    ...     file="ds.json",
    ... )
    (9792, 17)
    """
    elastic = Elasticity(**section)
    micros, cap, larger = elastic.micro_batch_sizes, elastic.max_train_batch_size, elastic.prefer_larger_batch
    if max(micros) > cap:
        raise ConfigError(
            f"{file}: `elasticity.micro_batch_sizes` = {list(micros)} are above `max_train_batch_size` = {cap}"
        )
    per_node = elastic.num_gpus_per_node
    if elastic.version >= 0.2 and min(micros) > cap // per_node:
        raise ConfigError(
            f"{file}: `elasticity.num_gpus_per_node` = {per_node} leaves {cap // per_node} samples a device of "
            f"`max_train_batch_size` = {cap}, fewer than any of `micro_batch_sizes` = {list(micros)}"
        )
    batch, worlds = _best(elastic)
    if elastic.version >= 0.2 and world not in worlds:
        totals = [cap // (micro * world) * micro * world for micro in micros]
        batch, worlds = (max if larger else min)(totals), [world] * (max(totals) > 0)
    fitting = [micro for micro in micros if world in worlds and batch // world % micro == 0 and batch % world == 0]
    if not fitting:
        raise ConfigError(
            f"{file}: `elasticity` gives `train_batch_size` = {batch}, which {world} data shards cannot divide into "
            f"micro-batches of {list(micros)}; {_nearest(world, worlds)}"
        )
    return batch, max(fitting) if larger or elastic.version < 0.2 else fitting[0]


def elastic_worlds(elastic: Elasticity) -> list[int]:
    """The numbers of devices that the batch size of an `elasticity` section is chosen for; none where there is none.

    >>> elastic_worlds(Elasticity(max_train_batch_size=12, micro_batch_sizes=[4], max_gpus=9))
    [1, 2]
    """
    per_node = 1 if elastic.version < 0.2 else elastic.num_gpus_per_node
    smallest = min(elastic.micro_batch_sizes)
    return [] if smallest > elastic.max_train_batch_size // per_node else _best(elastic)[1]


def _best(elastic: Elasticity) -> tuple[int, list[int]]:
    """The batch size that most numbers of devices fit, and these numbers; version 0.2 counts whole nodes."""
    per_node = 1 if elastic.version < 0.2 else elastic.num_gpus_per_node
    low, high = elastic.min_gpus // per_node, elastic.max_gpus // per_node
    cap = elastic.max_train_batch_size // per_node
    batch, nodes = best_batch(elastic.micro_batch_sizes, cap, low, high, elastic.prefer_larger_batch)
    return batch * per_node, [n * per_node for n in nodes]


def _nearest(world: int, worlds: Sequence[int]) -> str:
    near = [*[w for w in worlds if w < world][-1:], *[w for w in worlds if w > world][:1]]
    return f"the nearest numbers that can are {' and '.join(map(str, near))}" if near else "no number can"
