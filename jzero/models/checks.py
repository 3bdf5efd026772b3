"""What the configurations of the models check alike, and say alike when it does not fit."""

from collections.abc import Callable, Sequence
from typing import Protocol, get_args

import jax

from jzero.base.remat_policies import JAX_POLICIES
from jzero.errors import ConfigError
from jzero.jaxpr.policies import POLICIES
from jzero.ops.request import Implementation


def check_sizes(config: object, *names: str) -> None:
    """Refuses fields that are not positive whole numbers."""
    for name in names:
        size = getattr(config, name)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"model.{name} must be a positive whole number, not {size!r}.")


def check_multiple(config: object, name: str, of: str) -> None:
    """Refuses a size that another size does not divide."""
    if getattr(config, name) % getattr(config, of):
        raise ConfigError(
            f"model.{name} {getattr(config, name)} must be a multiple of model.{of} {getattr(config, of)}."
        )


def check_flags(config: object, *names: str) -> None:
    """Refuses fields that are not bool."""
    for name in names:
        if not isinstance(getattr(config, name), bool):
            raise ConfigError(f"model.{name} must be true or false, not {getattr(config, name)!r}.")


def check_choice(config: object, name: str, known: Sequence[object]) -> None:
    """Refuses a field that is none of the known values."""
    value = getattr(config, name)
    if isinstance(value, bool) or value not in known:
        raise ConfigError(f"model.{name} must be one of {', '.join(map(str, known))}, not {value!r}.")


def check_positive(config: object, *names: str) -> None:
    """Refuses fields that are not positive numbers."""
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ConfigError(f"model.{name} must be a positive number, not {value!r}.")


class _Dropout(Protocol):
    @property
    def dropout(self) -> object: ...


def check_dropout(config: _Dropout) -> None:
    """Refuses a `dropout` that is no rate."""
    rate = config.dropout
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ConfigError(f"model.dropout must be a rate from 0 up to, not including, 1, not {rate!r}.")


def check_attention(config: object) -> None:
    """Refuses an `attention` that is no path of `jzero.attention`."""
    check_choice(config, "attention", get_args(Implementation))


class _Blocks(Protocol):
    @property
    def remat(self) -> object: ...


def check_blocks(config: _Blocks) -> None:
    """Refuses a `scan_layers` or `remat` that `jzero.models.blocks` cannot follow."""
    check_flags(config, "scan_layers")
    if isinstance(config.remat, bool) or config.remat in JAX_POLICIES:
        return
    if hasattr(jax.checkpoint_policies, str(config.remat)):  # a factory
        raise ConfigError(
            f"model.remat {config.remat!r} takes arguments, which a name cannot give; the policies that take none are "
            f"{', '.join(JAX_POLICIES)}."
        )
    raise ConfigError(
        f"model.remat must be true, false or the name of one of jax.checkpoint_policies, not {config.remat!r}."
    )


def remat_policy(remat: bool | str) -> Callable | None:
    """The `policy` argument of `jax.checkpoint` for a `remat` option; None recomputes everything."""
    return POLICIES[remat] if isinstance(remat, str) else None
