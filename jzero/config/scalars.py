"""The scalar types of the configuration: what people write for a number or a switch, and what it becomes.

DeepSpeed files hold `5e8` for whole numbers, numbers in quotes, and `"auto"` in place of nearly anything. Each type
here takes those spellings; `"auto"` passes through every one of them and is replaced later by `jzero.config.auto`, so
that after `Config.resolve` a value has the type its annotation says.
"""

import math
from typing import Annotated, Any

from pydantic import PlainValidator

AUTO = "auto"


def is_auto(value: Any) -> bool:
    """Whether a value is still to be filled from the training arguments."""
    return isinstance(value, str) and value.lower() == AUTO


def _number(value: Any, wanted: str) -> float | int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = value if isinstance(value, int) else float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"must be {wanted}, got {value!r}") from None
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"must be {wanted}, got {value!r}")
    return number


def _bounded(number: Any, value: Any, low: float, high: float, wanted: str) -> Any:
    if not low <= number <= high:
        bound = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise ValueError(f"must be {wanted} {bound}, got {value!r}")
    return number


def whole(low: float = -math.inf, high: float = math.inf) -> PlainValidator:
    """A whole number in [low, high]; `5e8`, `100.0` and `"10"` count as whole numbers."""

    def parse(value: Any) -> Any:
        if is_auto(value):
            return AUTO
        number = _number(value, "a whole number")
        if number != int(number):
            raise ValueError(f"must be a whole number, got {value!r}")
        return _bounded(int(number), value, low, high, "a whole number")

    return PlainValidator(parse)


def real(low: float = -math.inf, high: float = math.inf) -> PlainValidator:
    """A finite number in [low, high]."""

    def parse(value: Any) -> Any:
        return AUTO if is_auto(value) else _bounded(float(_number(value, "a number")), value, low, high, "a number")

    return PlainValidator(parse)


def choice(*allowed: str, **spellings: str) -> PlainValidator:
    """One of some words, in any case; `spellings` names other words for them."""

    def parse(value: Any) -> Any:
        word = value.lower() if isinstance(value, str) else ""
        matches = [a for a in allowed if a.lower() == spellings.get(word, word)]
        if not matches and not is_auto(value):
            raise ValueError(f"must be one of {', '.join(allowed)}, got {value!r}")
        return matches[0] if matches else AUTO

    return PlainValidator(parse)


def _switch(value: Any) -> Any:
    spelling = value.lower() if isinstance(value, str) else value
    if spelling in ("true", "false") or isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return spelling not in ("false", False, 0)
    if is_auto(value):
        return AUTO
    raise ValueError(f"must be true or false, got {value!r}")


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"must be a string, got {value!r}")
    return value


def _texts(value: Any) -> Any:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"must be a list of strings, got {value!r}")
    return tuple(value)


def _pair(value: Any) -> Any:
    if is_auto(value):
        return AUTO
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"must be a list of two numbers, got {value!r}")
    return tuple(_bounded(float(_number(v, "two numbers")), value, 0, 1, "two numbers") for v in value)


def _stage(value: Any) -> Any:
    try:
        number = _number(value, "")
    except ValueError:
        number = -1
    if number not in (0, 1, 2, 3):
        raise ValueError(f"must be 0, 1, 2 or 3, got {value!r}")
    return int(number)


def _steps_per_print(value: Any) -> Any:
    if value == math.inf or (isinstance(value, str) and value.lower() == "inf"):
        return None  # Accelerate writes infinity for "never"
    number = _number(value, "a number of steps")
    return _bounded(int(number), value, 0, math.inf, "a number of steps")


Switch = Annotated[bool, PlainValidator(_switch)]
Text = Annotated[str, PlainValidator(_text)]
Texts = Annotated[tuple[str, ...], PlainValidator(_texts)]
Whole = Annotated[int, whole()]
Count = Annotated[int, whole(0)]
Positive = Annotated[int, whole(1)]
Real = Annotated[float, real()]
NonNegative = Annotated[float, real(0)]
Fraction = Annotated[float, real(0, 1)]
Betas = Annotated[tuple[float, float], PlainValidator(_pair)]
Stage = Annotated[int, PlainValidator(_stage)]
StepsPerPrint = Annotated[int, PlainValidator(_steps_per_print)]
DType = Annotated[str, choice("fp32", "fp16", "bf16", bfp16="bf16")]
Anything = Annotated[Any, PlainValidator(lambda value: value)]
