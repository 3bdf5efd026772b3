"""Mutations of configurations as people and programs make them: one or a few of a file, the same for the same seed."""

import copy
import json
import random
from collections.abc import Callable
from typing import Any

HUGE = (2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 10**12, 10**30, 1e308, -1e308, 10**400, 1e-308, 1e400)
ODD = (0, 1, -1, 0.5, 1.0, -0.0, 1e-5, float("nan"), float("-inf"))
WORDS = ("auto", "Auto", "", " ", "true", "False", "none", "5e8", "1_000", "0x10", "١", "inf", "nan", "\x00", "\ud800")
TYPES = (None, True, False, [], [1], [[]], {}, {"a": 1}, {"enabled": False}, {"enabled": True}, ["auto", 1])
TWICE = "\x01twice\x01"
"""Stands for the name of the key before it, where an object has it twice."""

Place = tuple[dict[str, Any], str]


def mutated(file: dict[str, Any], rng: random.Random) -> str:
    """The text of a file with one to three things changed."""
    file = copy.deepcopy(file)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(file))
        if not places:
            break
        holder, key = rng.choice(places)
        rng.choice(KINDS)(holder, key, rng, places)
    return _text(file)


def _places(data: dict[str, Any]) -> list[Place]:
    found = [(data, key) for key in data]
    for value in data.values():
        if isinstance(value, dict):
            found += _places(value)
    return found


def _text(data: Any) -> str:
    """JSON, in which an object may have a key twice."""
    if not isinstance(data, dict):
        return json.dumps(data)
    names = [json.dumps(key.removesuffix(TWICE)) for key in data]
    return "{" + ", ".join(f"{name}: {_text(value)}" for name, value in zip(names, data.values(), strict=True)) + "}"


def _typo(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
    i, letter = rng.randrange(len(key) + 1), rng.choice("abcdeflmnoprst_-. S1\x00\x1b")
    swapped = key[: i - 1] + key[i - 1 : i + 1][::-1] + key[i + 1 :] if i else key.upper()
    misspelt = rng.choice((key[:i] + letter + key[i:], key[:i] + key[i + 1 :], swapped, key.title(), key + " "))
    holder[misspelt] = holder.pop(key)


def _set(values: tuple[Any, ...]) -> Callable[..., None]:
    def change(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
        holder[key] = copy.deepcopy(rng.choice(values))

    return change


def _sign(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
    value = holder[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    holder[key] = -value if number else not value if isinstance(value, bool) else f"-{value}"


def _scale(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
    if isinstance(holder[key], int | float) and not isinstance(holder[key], bool) and abs(holder[key]) < 10**300:
        holder[key] *= rng.choice((0.5, 1.5, 3, 10, 1000, 1e-9, 1e9, 1e20))


def _quoted(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
    holder[key] = json.dumps(holder[key])


def _wrapped(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
    value = holder[key]
    deep: Any = value
    for _ in range(rng.choice((1, 2, 50, 150))):
        deep = {key: deep}
    holder[key] = rng.choice(([value], {key: value}, {"value": value}, deep))


def _unwrapped(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
    if isinstance(holder[key], dict):
        holder.update(holder.pop(key))


def _moved(holder: dict[str, Any], key: str, rng: random.Random, places: list[Place]) -> None:
    sections = [h[k] for h, k in places if isinstance(h[k], dict) and h[k] is not holder[key]]
    if sections and not isinstance(holder[key], dict):
        rng.choice(sections)[key] = holder.pop(key)


def _swapped(holder: dict[str, Any], key: str, rng: random.Random, places: list[Place]) -> None:
    other, name = rng.choice([place for place in places if not isinstance(place[0][place[1]], dict)] or [(holder, key)])
    if not isinstance(holder[key], dict):
        holder[key], other[name] = other[name], holder[key]


def _twice(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
    holder[key + TWICE] = rng.choice((holder[key], 1, None))


def _dropped(holder: dict[str, Any], key: str, rng: random.Random, _: list[Place]) -> None:
    del holder[key]


KINDS = (
    *(_typo, _typo, _set(HUGE), _set(HUGE), _set(ODD), _set(WORDS), _set(TYPES), _sign, _scale, _scale),
    *(_quoted, _wrapped, _unwrapped, _moved, _swapped, _twice, _dropped),
)
