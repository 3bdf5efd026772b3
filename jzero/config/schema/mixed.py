"""Apex's `amp` and torch's `torch_autocast`: other ways to ask for 16-bit compute, read as `fp16` and `bf16`."""

from collections.abc import Iterator, Mapping

from jzero.base.types import Json
from jzero.config.schema.precision import Fp16
from jzero.config.schema.scalars import shown
from jzero.config.schema.section import Mapped

_LEVELS = ("O0", "O1", "O2", "O3", "auto")
"""Apex's levels: fp32, and three kinds of fp16."""

_APEX = {
    "loss_scale": 0,
    "min_loss_scale": 1.0,
    "max_loss_scale": 2.0**24,
    "loss_scale_window": 2000,
    "hysteresis": 1,
}
"""Apex's loss scaler in the words of `fp16`, and of `jzero` for the largest scale."""

_DTYPES = {"bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "none": "fp16"}
"""What people write for a dtype; autocast without one is fp16 on GPUs."""


def mixed_precision(data: dict[str, Json]) -> Iterator[Mapped]:
    """Replaces the two sections, where they are switched on, by what they are called here.

    `amp` is left alone together with ZeRO, `fp16` or `bf16`, and so is an autocast that contradicts one of these;
    `contradictions` then says so.

    Args:
        data: The top level of a configuration; changed in place.
    """
    zero = data.get("zero_optimization")
    stage = zero.get("stage", 0) if isinstance(zero, Mapping) else 0
    chosen = {_DTYPES[name] for name in ("fp16", "bf16", "bfloat16") if _is_on(data.get(name))}
    amp, autocast = data.get("amp"), data.get("torch_autocast")
    if isinstance(amp, Mapping) and _is_on(amp) and stage in (0, "0") and not chosen:
        yield from _apex(data, amp)
    if isinstance(autocast, Mapping) and _is_on(autocast) and not _is_on(data.get("amp")):
        dtype = str(autocast.get("dtype"))
        name = _DTYPES.get(dtype.lower().removeprefix("torch."))
        if name is not None and chosen <= {name}:
            section = data.get(name)
            data[name] = {**(section if isinstance(section, Mapping) else {}), "enabled": True}
            data["torch_autocast"] = _without(autocast, "enabled", "dtype")
            for written in ("enabled", "dtype") if autocast.get("dtype") is not None else ("enabled",):
                yield Mapped(f"{name}.enabled", True, f"torch_autocast.{written}", autocast[written])


def _apex(data: dict[str, Json], amp: Mapping[str, Json]) -> Iterator[Mapped]:
    """Reads `amp` as `fp16`, and as Apex's loss scaler, which stops growing at 2**24 unless the file says otherwise."""
    level, off = str(amp.get("opt_level", "O1")), data.get("fp16")
    if level not in _LEVELS:
        return
    data["amp"] = _without(amp, "enabled", "opt_level")
    for written in ("enabled", "opt_level") if amp.get("opt_level") is not None else ("enabled",):
        yield Mapped("fp16.enabled", level != "O0", f"amp.{written}", amp[written])
    if level == "O0":
        return
    scales = {"loss_scale": ("dynamic", "auto"), "min_loss_scale": ("auto",), "max_loss_scale": ("auto",)}
    given = {name: amp[name] for name in scales if amp.get(name) is not None}
    data["amp"] = _without(data["amp"], *scales)
    values = {**_APEX, **{name: _APEX[name] if scale in scales[name] else scale for name, scale in given.items()}}
    largest = values.pop("max_loss_scale")
    data["fp16"] = {"enabled": True, **values}
    own = data.get("jzero")
    data["jzero"] = {"max_loss_scale": largest, **(own if isinstance(own, Mapping) else {})}
    largest = data["jzero"]["max_loss_scale"]
    for name, value in {**values, "max_loss_scale": largest}.items():
        key = f"jzero.{name}" if name == "max_loss_scale" else f"fp16.{name}"
        if name in given:
            yield Mapped(key, value, f"amp.{name}", given[name])
        elif not isinstance(own, Mapping) or name not in own:
            yield Mapped(key, value, "", "as Apex has it, for `amp`")
    for name, value in off.items() if isinstance(off, Mapping) else ():
        if name in Fp16.model_fields and name != "enabled" and name not in given:
            now = values.get(name, Fp16.model_fields[name].default)
            yield Mapped(f"fp16.{name}", now, f"fp16.{name}", value)


def _without(section: Mapping[str, Json], *names: str) -> dict[str, Json]:
    return {name: value for name, value in section.items() if name not in names}


def contradictions(values: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yields (key, what is wrong) for each of the two sections that is still there, and on."""
    chosen = [name for name in ("fp16", "bf16") if name in values and values[name].enabled is True]
    amp, autocast, zero = (values.get(name) for name in ("amp", "torch_autocast", "zero_optimization"))
    if amp and amp.enabled is True:
        if chosen:
            yield "amp.enabled", f"and `{chosen[0]}.enabled` are both true; switch one of them off"
        elif zero and zero.stage:
            yield "amp.enabled", "is refused with ZeRO, as in DeepSpeed; use `bf16` or `fp16`"
        else:
            yield "amp.opt_level", f"must be one of {', '.join(_LEVELS)}, got {shown(amp.opt_level)}"
    if autocast and autocast.enabled is True:
        beside = f" beside `{chosen[0]}.enabled`" if chosen else ""
        yield "torch_autocast.dtype", f"= {shown(autocast.dtype)} is refused{beside}: use `bf16` or `fp16` alone"


def _is_on(section: Json) -> bool:
    return isinstance(section, Mapping) and section.get("enabled") in (True, "true", "True")
