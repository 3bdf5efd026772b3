"""What a configuration seems to want and does not get: keys of another stage, and pairs of keys that disagree.

DeepSpeed trains such files too, and says nothing. None of these is an error here either, but each gets a sentence.
"""

from collections.abc import Iterator

from jzero.config.schema.building import out_of_order
from jzero.config.schema.deepspeed_schedules import OneCycleParams
from jzero.config.schema.precision import DYNAMIC
from jzero.config.schema.scalars import AUTO, is_auto
from jzero.config.schema.section import Section, Trace, at
from jzero.config.schema.top_level import TopLevel
from jzero.config.schema.verdicts import active_keys, given_keys, show, switched_on

_ZERO = "zero_optimization."
_SHARDED_AT = {
    "offload_param": (3,),
    "offload_optimizer": (1, 2, 3),
    "allgather_partitions": (1, 2),
    "allgather_bucket_size": (1, 2),
    "round_robin_gradients": (1, 2),
    "mics_shard_size": (3,),
    "mics_hierarchical_params_gather": (3,),
    "zero_hpz_partition_size": (3,),
    "zero_quantized_weights": (3,),
    "zero_quantized_nontrainable_weights": (3,),
    "zero_quantized_gradients": (3,),
    "zeropp_loco_param": (3,),
    "memory_efficient_linear": (3,),
    "leaf_module": (3,),
}
"""At which stages DeepSpeed reads a key of `zero_optimization`; a key that is not here, at 1 to 3, `stage3_*` at 3."""

_DYNAMIC = (*(f"fp16.{name}" for name in DYNAMIC), "jzero.max_loss_scale")

_FOR_NVME = tuple(f"{_ZERO}offload_optimizer.{name}" for name in ("nvme_path", "buffer_count"))

_READ_AT_ANY_STAGE = ("stage", "reduce_bucket_size", "overlap_comm")
"""Stage 0 reads these too: its gradients are reduced as well."""


def unread(config: TopLevel, path: str) -> str | None:
    """Why the stage of this configuration does not read a key, or None if it does; see `notes_on`.

    >>> from jzero.config import Config
    >>> unread(Config.load({"zero_optimization": {"stage": 2}}), "zero_optimization.stage3_max_live_parameters")
    'stage 2 does not read it; stage 3 does'
    """
    if path.partition(".")[0] == "aio" or path in _FOR_NVME:
        return None if config.zero_optimization.swaps_optimizer else "nothing is kept on NVMe"
    if path in _DYNAMIC and config.precision == "fp16" and config.fp16.loss_scale not in (0, AUTO):
        return "`fp16.loss_scale` is a number, at which the scale stays"
    if not path.startswith(_ZERO):
        return None
    name, stage = path.removeprefix(_ZERO).partition(".")[0], config.zero_optimization.stage
    if name in _READ_AT_ANY_STAGE or is_auto(stage):
        return None
    if name == "sub_group_size":  # DeepSpeed's stages 1 and 2 do not have it; here it serves them too
        return None if config.zero_optimization.offloads_optimizer else "it bounds the update of an offloaded optimizer"
    stages = _SHARDED_AT.get(name, (3,) if name.startswith("stage3_") else (1, 2, 3))
    if stage in stages:
        return None
    does = {1: f"stage {stages[0]} does", 2: f"stages {stages[0]} and {stages[-1]} do"}
    return f"stage {stage} does not read it; {does.get(len(stages), f'stages {stages[0]} to {stages[-1]} do')}"


def notes_on(config: TopLevel, trace: Trace) -> Iterator[str]:
    """One sentence for each key that has no effect, that is unusual, or that contradicts another.

    Args:
        config: as loaded or resolved.
        trace: of it; it knows what the file calls each key.
    """
    unread_keys: list[str] = []
    for key in given_keys(config):
        reason = unread(config, key.path)
        if reason is None or any(key.path.startswith(f"{outer}.") for outer in unread_keys):
            continue
        unread_keys.append(key.path)
        number = isinstance(key.value, int) and not isinstance(key.value, bool)
        if number or _asks(key.value, key.default):
            yield f"`{trace.name(key.path)}` = {show(key.value)} has no effect: {reason}"
    for key in active_keys(config, "no effect here"):
        if unread(config, key.path) is None:
            yield f"`{trace.name(key.path)}` has no effect here: {key.verdict.reason}"
    params = config.zero_optimization.offload_param
    if config.zero_optimization.offloads_params and params and params.device == "nvme":
        device = trace.name(f"{_ZERO}offload_param.device")
        yield f"`{device}` = 'nvme' stands for host memory here: a compiled step reaches no files"
    yield from _unusual(config, trace)
    yield from (f"`{trace.name(path)}` {what}" for path, what in _cautions(config))
    yield from _disagreements(config)


def _unusual(config: TopLevel, trace: Trace) -> Iterator[str]:
    """Numbers that are right, but that nobody is likely to want."""
    for key in given_keys(config):
        if key.usual is None or not isinstance(key.value, int | float) or _switched_off(config, key.path, key.value):
            continue
        if not key.usual.low <= key.value <= key.usual.high:
            between = f"from {key.usual.low:g} to {key.usual.high:g}"
            yield f"`{trace.name(key.path)}` = {key.value:g} is unusual, {between} is not: {key.usual.why}"


def _switched_off(config: TopLevel, path: str, value: float) -> bool:
    """Whether a number stands in a section that is off, or says that something is."""
    if path == "gradient_clipping":
        return value == 0
    return path.startswith("fp16.") and (config.precision != "fp16" or (path == "fp16.loss_scale" and value == 0))


def _cautions(section: Section, path: str = "") -> Iterator[tuple[str, str]]:
    """What the sections themselves have to say of their keys, by dotted path."""
    values = {name: getattr(section, name) for name in type(section).model_fields}
    given_values = {name: values[name] for name in section.model_fields_set}
    for order, wrong in out_of_order(type(section), given_values):
        if order.note:
            yield at(path, order.low), wrong
    if not any(map(is_auto, values.values())):
        yield from ((at(path, key), what) for key, what in section.cautions())
    for name in sorted(given_values):
        if isinstance(values[name], Section):
            yield from _cautions(values[name], at(path, name))


def _asks(value: object, default: object) -> bool:
    """Whether a key asks for something; an offload section by its device."""
    device = getattr(value, "device", None)
    return device not in ("none", "auto") if device is not None else switched_on(value, default)


def _disagreements(config: TopLevel) -> Iterator[str]:
    """Learning rates that contradict each other; the one in effect comes first."""
    optimizer, scheduler = config.optimizer, config.scheduler
    rate, decay = (getattr(optimizer and optimizer.params, name, None) for name in ("lr", "weight_decay"))
    if isinstance(rate, float) and isinstance(decay, float) and rate * decay >= 1:
        does = "an update leaves nothing of a parameter, or turns its sign"
        yield f"`optimizer.params.weight_decay` = {decay:g} times a rate of {rate:g} is 1 or more: {does}"
    if optimizer is None or scheduler is None:
        return
    cycles = isinstance(scheduler.params, OneCycleParams) and scheduler.params.cycle_momentum
    if cycles and getattr(optimizer.params, "cycled", None) != "betas":
        yield f"`scheduler.params.cycle_momentum` has no effect with {optimizer.type}, whose betas it would cycle"
    rate, peak = getattr(optimizer.params, "lr", None), getattr(scheduler.params, "warmup_max_lr", None)
    numbers = isinstance(rate, float) and isinstance(peak, float) and "lr" in optimizer.params.model_fields_set
    if numbers and rate != peak:
        yield f"`scheduler.params.warmup_max_lr` = {peak} is what trains, and `optimizer.params.lr` = {rate} does not"
