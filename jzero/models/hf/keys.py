"""A `config.json`, read key by key: each value of the kind that is expected, or one sentence about it."""

from collections.abc import Iterable, Mapping

from jzero.base.types import Json
from jzero.errors import ConfigError


class Keys:
    """The keys of a configuration.

    Args:
        values: what the file holds.
        where: what messages call it.
        defaults: what keys that are not there are taken for, as the class that wrote the file has it.

    Example:
        >>> keys = Keys({"hidden_size": 64}, "config.json", {"rms_norm_eps": 1e-6})
        >>> keys.whole("hidden_size"), keys.number("rms_norm_eps")
        (64, 1e-06)
        >>> keys.whole("vocab_size")
        Traceback (most recent call last):
        jzero.errors.ConfigError: config.json lacks `vocab_size`, which must be a positive whole number.
    """

    def __init__(self, values: Mapping[str, Json], where: str, defaults: Mapping[str, Json] | None = None):
        self.values, self.where, self.defaults = {**(defaults or {}), **values}, where, defaults or {}

    def get(self, key: str) -> Json:
        """What a key holds; None where it is not there."""
        return self.values.get(key)

    def whole(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._or(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.wrong(key, "a positive whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A number of at least 0."""
        value = self._or(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise self.wrong(key, "a number of at least 0")
        return float(value)

    def optional(self, key: str) -> float | None:
        """A number above 0, or None."""
        if self.get(key) is None:
            return None
        if not (value := self.number(key)):
            raise self.wrong(key, "a number above 0, or null")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """A bool."""
        value = self._or(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def pad_token(self) -> int | None:
        """The id of padding, counted from the end if it is negative, as torch does; or None."""
        value, size = self.get("pad_token_id"), self.whole("vocab_size")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not -size <= value < size:
            raise self.wrong("pad_token_id", f"one of the {size} token ids, or null")
        return value % size

    def texts(self, key: str, known: Iterable[str]) -> list[str] | None:
        """A list of known words, or None."""
        value = self.get(key)
        if value is not None and (not isinstance(value, list) or any(word not in known for word in value)):
            raise self.wrong(key, f"a list of {' and '.join(known)}, which is what jzero has")
        return value

    def part(self, key: str) -> "Keys | None":
        """An object below a key, or None."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Keys(value, f"`{key}` of {self.where}")

    def refuse(self, key: str, *allowed: Json) -> None:
        """Refuses a value that changes the arithmetic in a way that jzero does not have."""
        if (value := self.get(key)) is not None and value not in allowed:
            raise ConfigError(
                f"{self.where}: `{key}` is {value!r}, which jzero does not have; it can be "
                f"{' or '.join(map(repr, allowed))} or be left out."
            )

    def wrong(self, key: str, right: str) -> ConfigError:
        """What to say of a value that does not fit."""
        if key not in self.values:
            return ConfigError(f"{self.where} lacks `{key}`, which must be {right}.")
        return ConfigError(f"{self.where}: `{key}` must be {right}, not {self.values[key]!r}.")

    def _or(self, key: str, default: Json) -> Json:
        value = self.get(key)
        return default if value is None and default is not None else value
