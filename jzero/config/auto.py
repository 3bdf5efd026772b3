"""`"auto"`, filled in one place: the table that Hugging Face's Trainer uses, and what happens to the rest.

A value that the training arguments set, and that the file sets to something else, is a contradiction. A value that
only the training arguments set holds as if the file had said `"auto"`, so that neither is ever ignored.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jzero.config.arguments import TrainingArguments
from jzero.config.batch import NAMES, resolve_batch
from jzero.config.optimizer import OptimizerConfig
from jzero.config.scalars import AUTO, is_auto
from jzero.config.scheduler import SchedulerConfig
from jzero.config.section import Section, fail, given
from jzero.config.verdicts import given_keys


class Inputs(NamedTuple):
    """What an `"auto"` can be filled from; see `Config.resolve`."""

    world: int
    arguments: TrainingArguments | None = None
    hidden_size: int | None = None
    num_training_steps: int | None = None


class Fill(NamedTuple):
    """How one key is filled: from these training arguments, by this function (None: not known)."""

    arguments: tuple[str, ...]
    value: Callable[[TrainingArguments, Inputs], Any]
    needs: str = "training_arguments"


def _argument(name: str) -> Fill:
    return Fill((name,), lambda a, _: getattr(a, name))


def _total_steps(a: TrainingArguments, inputs: Inputs) -> int | None:
    return inputs.num_training_steps or (a.max_steps if a.max_steps > 0 else None)


def _warmup_steps(a: TrainingArguments, inputs: Inputs) -> int | None:
    total = _total_steps(a, inputs)
    return a.warmup_updates(total or 0) if total or a.warmup_steps or not a.warmup_ratio else None


FILLS: dict[str, Fill] = {
    "train_micro_batch_size_per_gpu": _argument("per_device_train_batch_size"),
    "gradient_accumulation_steps": _argument("gradient_accumulation_steps"),
    "gradient_clipping": _argument("max_grad_norm"),
    "fp16.enabled": _argument("fp16"),
    "bf16.enabled": _argument("bf16"),
    "optimizer.params.lr": _argument("learning_rate"),
    "optimizer.params.betas": Fill(("adam_beta1", "adam_beta2"), lambda a, _: (a.adam_beta1, a.adam_beta2)),
    "optimizer.params.eps": _argument("adam_epsilon"),
    "optimizer.params.weight_decay": _argument("weight_decay"),
    "scheduler.params.warmup_min_lr": Fill((), lambda a, _: 0.0),
    "scheduler.params.warmup_max_lr": _argument("learning_rate"),
    "scheduler.params.total_num_steps": Fill(("max_steps",), _total_steps, "the number of training steps"),
    "scheduler.params.warmup_num_steps": Fill(
        ("warmup_steps", "warmup_ratio"), _warmup_steps, "the number of training steps"
    ),
}


_HIDDEN: dict[str, Callable[[int], int]] = {
    "zero_optimization.reduce_bucket_size": lambda hidden: hidden * hidden,
    "zero_optimization.stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "zero_optimization.stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""Filled from the model's width; below stage 3 the last two have no meaning."""

_OPTIMIZER_AUTO = {"lr": AUTO, "betas": AUTO, "eps": AUTO, "weight_decay": AUTO}


def fill(config: Section, inputs: Inputs, file: str) -> dict[str, Any]:
    """Replaces every `"auto"` of a configuration.

    Args:
        config: A validated `Config`.
        inputs: What is known about the run.
        file: What to call the configuration in messages.

    Returns:
        The configuration as a dictionary: no `"auto"`, all three batch sizes.

    Raises:
        ConfigError: As `Config.resolve` says.
    """
    data, arguments = given(config), inputs.arguments
    if arguments is not None:
        data.setdefault("optimizer", {"type": "AdamW", "params": dict(_OPTIMIZER_AUTO)})
        _apply_arguments(data, arguments, inputs, file)
    _apply_hidden_size(data, inputs.hidden_size)
    unfilled = _drop_unread(data, config)
    asked = [name for name in NAMES if data.get(name) == AUTO]
    sizes = [None if is_auto(value) else value for value in map(data.get, NAMES)]
    if asked and sizes[0] is None and sizes[1] is None:
        unfilled += [f"`{name}` (needs training_arguments)" for name in asked]
    fail(file, [f'"auto" has nothing to be filled from: {", ".join(unfilled)}; give values'] if unfilled else [])
    total, micro, accumulation = resolve_batch(*sizes, world=inputs.world, file=file)
    return data | dict(zip(NAMES, (total, micro, accumulation), strict=True))


def _apply_arguments(data: dict[str, Any], arguments: TrainingArguments, inputs: Inputs, file: str) -> None:
    disagreements = []
    if not any(name in data for name in NAMES):
        data |= dict.fromkeys(NAMES[1:], AUTO)
    for path, row in FILLS.items():
        parent, key = _parent(data, path)
        if parent is None or not _has_field(data, path):
            continue
        explicit = bool(arguments.model_fields_set.intersection(row.arguments))
        present, value = key in parent, row.value(arguments, inputs)
        if value is None or not (explicit or is_auto(parent.get(key))):
            continue
        if not present or is_auto(parent[key]):
            parent[key] = value
        elif parent[key] != value:
            disagreements.append(f"`{path}` = {parent[key]!r} but {', '.join(row.arguments)} = {value!r}")
    listed = "; ".join(disagreements)
    fail(file, [f'contradicts the training arguments: {listed}; make them equal or write "auto"'] if listed else [])


def _apply_hidden_size(data: dict[str, Any], hidden_size: int | None) -> None:
    zero = data.get("zero_optimization", {})
    for path, size in _HIDDEN.items():
        name = path.split(".")[1]
        if is_auto(zero.get(name)):
            if name.startswith("stage3_") and zero.get("stage", 0) < 3:
                del zero[name]
            elif hidden_size is not None:
                zero[name] = size(hidden_size)


def _drop_unread(data: dict[str, Any], config: Section) -> list[str]:
    """Lets jzero's default stand for an "auto" that changes no result; returns the others that are still open."""
    unfilled = []
    for key in given_keys(config):
        parent, name = _parent(data, key.path)
        if parent is None or not is_auto(parent.get(name)) or key.path in NAMES:
            continue
        if key.verdict.kind != "honoured":
            del parent[name]
        else:
            unfilled.append(f"`{key.path}` ({_needs(key.path)})")
    return unfilled


def _needs(path: str) -> str:
    if path in _HIDDEN:
        return "needs the model's hidden size"
    return f"needs {FILLS[path].needs}" if path in FILLS else "has no counterpart in training_arguments"


def _parent(data: dict[str, Any], path: str) -> tuple[dict[str, Any] | None, str]:
    """The object that holds a dotted key, or None; the precision sections come into being when asked for."""
    *outer, key = path.split(".")
    for name in outer:
        if name in ("fp16", "bf16"):
            data.setdefault(name, {})
        data = data.get(name)  # type: ignore[assignment]
        if not isinstance(data, dict):
            return None, key
    return data, key


def _has_field(data: dict[str, Any], path: str) -> bool:
    """Whether the optimizer or scheduler of this type has the parameter."""
    section, _, key = path.partition(".params.")
    if not key:
        return True
    owner = OptimizerConfig if section == "optimizer" else SchedulerConfig
    schema = owner.subsection("params", data.get(section) or {})
    return schema is not None and key in schema.model_fields
