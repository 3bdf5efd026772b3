"""What the parameters of optimizers and of schedules have in common: which learning rates are usual, and how long."""

from collections.abc import Iterator, Mapping

from jzero.base.types import Json
from jzero.config.schema.scalars import LARGEST_32, is_auto
from jzero.config.schema.verdicts import Usual

RATES = Usual(0, 10, "a learning rate of this size leaves little of the parameters after one update")


def too_long(values: Mapping[str, Json], up: str, down: str) -> Iterator[tuple[str, str]]:
    """A complaint about a cycle whose two halves, 2000 updates unless given and as long as each other, are too long.

    >>> [key for key, _ in too_long({"up": 2**31 - 1}, "up", "down")], list(too_long({"up": 5}, "up", "down"))
    (['up'], [])
    """
    first = values.get(up, 2000)
    second = values.get(down) or first
    if isinstance(first, int) and isinstance(second, int) and first + second > LARGEST_32:
        yield up, f"= {first} and `{down}` = {second} make a cycle of more than {LARGEST_32} updates"


_FLOORS = {"WarmupLR": "warmup_min_lr", "CosineAnnealingLR": "eta_min", "CosineAnnealingWarmRestarts": "eta_min"}
"""The lowest rate of the schedules whose highest is the optimizer's."""


def upside_down(values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """A complaint about a schedule whose lowest rate is above the optimizer's, which should be its highest.

    Args:
        values: the sections that the configuration gives, by name.
    """
    optimizer, scheduler = (values.get(name) for name in ("optimizer", "scheduler"))
    floor = _FLOORS.get(scheduler.type or "") if scheduler else None
    if not optimizer or not scheduler or not floor or getattr(scheduler.params, "warmup_max_lr", None) is not None:
        return
    low, high = getattr(scheduler.params, floor, None), getattr(optimizer.params, "lr", None)
    if low is not None and high is not None and not is_auto(low) and not is_auto(high) and low > high:
        default = "" if "lr" in optimizer.params.model_fields_set else " (the default)"
        yield (
            f"scheduler.params.{floor}",
            f"= {low:g} is above `optimizer.params.lr` = {high:g}{default}; lower it",
        )
