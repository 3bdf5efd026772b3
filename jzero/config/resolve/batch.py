"""The three batch sizes: samples per step = samples per micro-batch x micro-batches per step x data shards."""

import math
from collections.abc import Iterable

from jzero.config.schema.scalars import LARGEST_32
from jzero.errors import ConfigError

NAMES = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def resolve_batch(
    total: int | None, micro: int | None, accumulation: int | None, world: int, file: str = "configuration"
) -> tuple[int, int, int]:
    """Derives the batch sizes that were not given, by DeepSpeed's table, and checks all three.

    Args:
        total: `train_batch_size`, samples per optimizer step, or None.
        micro: `train_micro_batch_size_per_gpu`, samples per device and micro-batch, or None.
        accumulation: `gradient_accumulation_steps`, micro-batches per step, or None.
        world: Number of devices that take different data.
        file: What to call the source in messages.

    Returns:
        (total, micro, accumulation), with total == micro * accumulation * world.

    Raises:
        ConfigError: Neither total nor micro is given, or no whole numbers fit.

    >>> resolve_batch(32, 8, None, world=2)
    (32, 8, 2)
    """
    given = (total, micro, accumulation)
    if total is None and micro is None:
        raise ConfigError(f"{file}: give `train_batch_size` or `train_micro_batch_size_per_gpu`, or both")
    if total is None:
        assert micro is not None
        accumulation = accumulation or 1
        total = micro * accumulation * world
    elif micro is None:
        accumulation = accumulation or 1
        micro = total // world // accumulation
    elif accumulation is None:
        accumulation = total // micro // world
    if total > LARGEST_32:  # which only a product of the others can be
        raise ConfigError(
            f"{file}: `train_micro_batch_size_per_gpu` = {micro} x `gradient_accumulation_steps` = {accumulation} x "
            f"{world} data shards are {total} samples per step; a step takes at most {LARGEST_32}"
        )
    if total > 0 and total == micro * accumulation * world:
        return total, micro, accumulation
    values = [f"`{n}` = {'not given' if v is None else v}" for n, v in zip(NAMES, given, strict=True)]
    raise ConfigError(
        f"{file}: {', '.join(values)} do not fit {world} data shards, because train_batch_size must be "
        f"train_micro_batch_size_per_gpu x gradient_accumulation_steps x {world}; {_nearest(given, world)}"
    )


def fitting_micros(total: int, micros: Iterable[int], world: int) -> list[int]:
    """The micro-batches with which a total is kept on another number of data shards.

    Args:
        total: `train_batch_size`, to be kept.
        micros: those that fit into memory.
        world: Number of data shards now.

    Raises:
        ConfigError: The total cannot be divided among them.

    >>> fitting_micros(32, range(1, 5), world=4), fitting_micros(24, [3, 4], world=8)
    ([1, 2, 4], [3])
    """
    known = sorted(micros)
    fitting = [micro for micro in known if total % (micro * world) == 0]
    if not fitting:
        sizes = f"{known[0]} to {known[-1]}" if len(known) > 1 else f"{known[0]}"
        raise ConfigError(
            f"`train_batch_size` = {total} cannot be divided among {world} data shards in micro-batches of {sizes}"
        )
    return fitting


def _nearest(given: tuple[int | None, int | None, int | None], world: int) -> str:
    """The nearest batch sizes that fit: another total, or for the same total another size of the other two."""
    total, micro, accumulation = given
    assert total is not None
    unit = (micro or 1) * (accumulation or 1) * world
    if micro and accumulation:
        choices = [unit]
    else:
        choices = [t for t in (total // unit * unit, -(-total // unit) * unit) if t > 0]
    advice = f"the nearest `train_batch_size` that fits is {' or '.join(map(str, dict.fromkeys(choices)))}"
    kept = []
    for name, size, other in zip(NAMES[1:], (micro, accumulation), (accumulation, micro), strict=True):
        share, left = divmod(total, (other or 1) * world)
        if size and share and not left:
            kept.append(f"`{name}` = {share if other else _nearest_divisor(share, size)}")
    return f"{advice}, or keep {total} with {' or with '.join(kept)}" if kept else advice


def _nearest_divisor(number: int, to: int) -> int:
    """The divisor of a number that is nearest to another number.

    >>> _nearest_divisor(2**31 - 1, 5), _nearest_divisor(36, 5)
    (1, 4)
    """
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return min([*small, *(number // d for d in reversed(small))], key=lambda d: abs(d - to))
