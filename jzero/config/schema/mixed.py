"""Apex's `amp` and torch's `torch_autocast`: other ways to ask for 16-bit compute, read as `fp16` and `bf16`."""

from collections.abc import Iterator, Mapping

from jzero.base.types import Json
from jzero.config.schema.scalars import shown
from jzero.config.schema.section import Mapped

_LEVELS = ("O0", "O1", "O2", "O3", "auto")
"""Apex's levels: fp32, and three kinds of fp16."""

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
        level = str(amp.get("opt_level", "O1"))
        if level in _LEVELS:
            del data["amp"]
            if level != "O0":
                data["fp16"] = {"enabled": True, **_apex_scaler(amp)}
                data["jzero"] = {"max_loss_scale": amp.get("max_loss_scale") or 2.0**24, **(data.get("jzero") or {})}
            yield Mapped("fp16.enabled", level != "O0", "amp.opt_level", level)
    if isinstance(autocast, Mapping) and _is_on(autocast) and not _is_on(data.get("amp")):
        dtype = str(autocast.get("dtype"))
        name = _DTYPES.get(dtype.lower().removeprefix("torch."))
        if name is not None and chosen <= {name}:
            section = data.get(name)
            data[name] = {**(section if isinstance(section, Mapping) else {}), "enabled": True}
            del data["torch_autocast"]
            yield Mapped(f"{name}.enabled", True, "torch_autocast.dtype", autocast.get("dtype"))


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


def _apex_scaler(amp: Mapping[str, Json]) -> dict[str, Json]:
    """Apex's loss scaler in `fp16`'s terms; it stops growing at 2**24 besides."""
    scale, lowest = amp.get("loss_scale"), amp.get("min_loss_scale")
    static = {} if scale in (None, "dynamic", "auto") else {"loss_scale": scale}
    floor = {} if lowest is None else {"min_loss_scale": lowest}
    return {"loss_scale_window": 2000, "hysteresis": 1, **static, **floor}


def _is_on(section: Json) -> bool:
    return isinstance(section, Mapping) and section.get("enabled") in (True, "true", "True")
