"""The three batch sizes: samples per step = samples per micro-batch x micro-batches per step x data shards."""

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
    if total > 0 and total == micro * accumulation * world:
        return total, micro, accumulation
    values = [f"`{n}` = {'not given' if v is None else v}" for n, v in zip(NAMES, given, strict=True)]
    raise ConfigError(
        f"{file}: {', '.join(values)} do not fit {world} data shards, because train_batch_size must be "
        f"train_micro_batch_size_per_gpu x gradient_accumulation_steps x {world}; {_nearest(given, world)}"
    )


def _nearest(given: tuple[int | None, int | None, int | None], world: int) -> str:
    """The nearest batch sizes that fit: first another total, then another micro-batch size for the same total."""
    total, micro, accumulation = given
    assert total is not None
    unit = (micro or 1) * (accumulation or 1) * world
    if micro and accumulation:
        choices = [unit]
    else:
        choices = [t for t in (total // unit * unit, -(-total // unit) * unit) if t > 0]
    advice = f"the nearest `train_batch_size` that fits is {' or '.join(map(str, dict.fromkeys(choices)))}"
    share, left = divmod(total, (accumulation or 1) * world)
    if micro and not left:
        fitting = [m for m in range(1, share + 1) if accumulation is None and share % m == 0] or [share]
        best = min(fitting, key=lambda m: abs(m - micro))
        advice += f", or keep {total} with `train_micro_batch_size_per_gpu` = {best}"
    return advice
