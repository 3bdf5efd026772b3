"""The scalar types of the configuration: what people write for a number or a switch, and what it becomes.

DeepSpeed files hold `5e8` for whole numbers, numbers in quotes, and `"auto"` in place of nearly anything. Each type
here takes those spellings; `"auto"` passes through every one of them and is replaced later, by
`jzero.config.resolve.auto`, so that in a `ResolvedConfig` a value has the type its annotation says.
"""

import math
import reprlib
from typing import Annotated, Any

from pydantic import PlainValidator

from jzero.base.types import Json

AUTO = "auto"

_SHOWN = reprlib.Repr()
_SHOWN.maxstring = _SHOWN.maxother = _SHOWN.maxlong = 100
_SHOWN.maxlist = _SHOWN.maxtuple = _SHOWN.maxdict = 16
_SHOWN.maxlevel = 3


def shown(value: Json) -> str:
    """A value as a message quotes it: what would fill the screen is cut.

    >>> shown("x" * 10), len(shown("x" * 10**6)), shown([1, 2])
    ("'xxxxxxxxxx'", 100, '[1, 2]')
    """
    return _SHOWN.repr(value)


def is_auto(value: Json) -> bool:
    """Whether a value is still to be filled from the training arguments."""
    return isinstance(value, str) and value.lower() == AUTO


def _number(value: Json, wanted: str) -> float | int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = float(value)  # which also says whether a whole number is one that a computer works with
        number = value if isinstance(value, int) else number
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"must be {wanted}, got {shown(value)}") from None
    if isinstance(number, float) and not math.isfinite(number):
        raise ValueError(f"must be {wanted}, got {shown(value)}")
    return number


def _bounded(number: Json, value: Json, low: float, high: float, wanted: str) -> Json:
    if not low <= number <= high:
        bound = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise ValueError(f"must be {wanted} {bound}, got {shown(value)}")
    return number


def whole(low: float = -math.inf, high: float = math.inf) -> PlainValidator:
    """A whole number in [low, high]; `5e8`, `100.0` and `"10"` count as whole numbers."""

    def parse(value: Json) -> Json:
        if is_auto(value):
            return AUTO
        number = _number(value, "a whole number")
        if number != int(number):
            raise ValueError(f"must be a whole number, got {shown(value)}")
        return _bounded(int(number), value, low, high, "a whole number")

    return PlainValidator(parse)


def real(low: float = -math.inf, high: float = math.inf) -> PlainValidator:
    """A finite number in [low, high]."""

    def parse(value: Json) -> Json:
        return AUTO if is_auto(value) else _bounded(float(_number(value, "a number")), value, low, high, "a number")

    return PlainValidator(parse)


def choice(*allowed: str, **spellings: str) -> PlainValidator:
    """One of some words, in any case; `spellings` names other words for them."""

    def parse(value: Json) -> Json:
        word = value.lower() if isinstance(value, str) else ""
        matches = [a for a in allowed if a.lower() == spellings.get(word, word)]
        if not matches and not is_auto(value):
            raise ValueError(f"must be one of {', '.join(allowed)}, got {shown(value)}")
        return matches[0] if matches else AUTO

    return PlainValidator(parse)


def _switch(value: Json) -> Json:
    spelling = value.lower() if isinstance(value, str) else value
    if spelling in ("true", "false") or isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)):
        return spelling not in ("false", False, 0)
    if is_auto(value):
        return AUTO
    raise ValueError(f"must be true or false, got {shown(value)}")


def _text(value: Json) -> Json:
    if not isinstance(value, str):
        raise ValueError(f"must be a string, got {shown(value)}")
    return value


def _text_or_false(value: Json) -> Json:
    if value is not False and not isinstance(value, str):
        raise ValueError(f"must be a string or false, got {shown(value)}")
    return AUTO if is_auto(value) else value


def _texts(value: Json) -> Json:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"must be a list of strings, got {shown(value)}")
    return tuple(value)


def _pair(value: Json) -> Json:
    if is_auto(value):
        return AUTO
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"must be a list of two numbers, got {shown(value)}")
    return tuple(_bounded(float(_number(v, "two numbers")), value, 0, 1, "two numbers") for v in value)


def _stage(value: Json) -> Json:
    if is_auto(value):
        return AUTO
    try:
        number = _number(value, "")
    except ValueError:
        number = -1
    if number not in (0, 1, 2, 3):
        raise ValueError(f"must be 0, 1, 2 or 3, got {shown(value)}")
    return int(number)


def _steps_per_print(value: Json) -> Json:
    if is_auto(value):
        return AUTO
    if value == math.inf or (isinstance(value, str) and value.lower() in ("inf", "infinity")):
        return None  # Accelerate writes infinity for "never"
    number = _number(value, "a number of steps")
    return _bounded(int(number), value, 0, math.inf, "a number of steps")


def _sizes(value: Json) -> Json:
    wanted = "a list of whole numbers"
    numbers = [_number(item, wanted) for item in value] if isinstance(value, list | tuple) and value else [0.5]
    if any(number < 1 or number != int(number) for number in numbers):
        raise ValueError(f"must be {wanted} at least 1, got {shown(value)}")
    return tuple(map(int, numbers))


def _steps(value: Json) -> Json:
    if is_auto(value):
        return AUTO
    wanted = "a number of steps"
    return math.ceil(_bounded(_number(value, wanted), value, 0, math.inf, wanted))


Switch = Annotated[bool, PlainValidator(_switch)]
Text = Annotated[str, PlainValidator(_text)]
TextOrFalse = Annotated[str | bool, PlainValidator(_text_or_false)]
Texts = Annotated[tuple[str, ...], PlainValidator(_texts)]
Whole = Annotated[int, whole()]
Count = Annotated[int, whole(0)]
Positive = Annotated[int, whole(1)]
Steps = Annotated[int, PlainValidator(_steps)]
Sizes = Annotated[tuple[int, ...], PlainValidator(_sizes)]
Real = Annotated[float, real()]
NonNegative = Annotated[float, real(0)]
Fraction = Annotated[float, real(0, 1)]
Betas = Annotated[tuple[float, float], PlainValidator(_pair)]
Stage = Annotated[int, PlainValidator(_stage)]
StepsPerPrint = Annotated[int, PlainValidator(_steps_per_print)]
DTYPES = {"bfp16": "bf16", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
"""What DeepSpeed and torch call the number formats besides; `torch.` in front is fine."""

DType = Annotated[str, choice("fp32", "fp16", "bf16", **DTYPES, **{f"torch.{name}": DTYPES[name] for name in DTYPES})]
Anything = Annotated[Any, PlainValidator(lambda value: value)]
