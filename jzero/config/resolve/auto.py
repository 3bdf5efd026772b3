"""`"auto"`, filled in one place: the table that Hugging Face's Trainer uses, and what happens to the rest.

A value that the training arguments set, and that the file sets to something else, is a contradiction. A value that
only the training arguments set holds as if the file had said `"auto"`, so that neither is ever ignored.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from jzero.base.types import Json
from jzero.config.resolve.batch import NAMES, resolve_batch
from jzero.config.resolve.elastic import elastic_batch
from jzero.config.schema.arguments import TrainingArguments
from jzero.config.schema.optimizer import OptimizerConfig
from jzero.config.schema.scalars import AUTO, is_auto
from jzero.config.schema.scheduler import SchedulerConfig
from jzero.config.schema.section import Section, Trace, fail, given
from jzero.config.schema.top_level import TopLevel
from jzero.config.schema.verdicts import given_keys

HiddenSize: TypeAlias = int | Callable[[], int | None] | None
"""The width of a model; a function is only called when a size needs it."""


class Inputs(NamedTuple):
    """What an `"auto"` can be filled from; see `Config.resolve`."""

    world: int
    arguments: TrainingArguments | None = None
    hidden_size: HiddenSize = None
    num_training_steps: int | None = None
    partly: bool = False


class Fill(NamedTuple):
    """How one key is filled: from these training arguments, by this function (None: not known)."""

    arguments: tuple[str, ...]
    value: Callable[[TrainingArguments, Inputs], Json]
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

STAGE = "zero_optimization.stage"
"""Filled by `jzero.plan.search.auto`, which knows model and devices."""

_OPTIMIZER_AUTO = {"lr": AUTO, "betas": AUTO, "eps": AUTO, "weight_decay": AUTO}


class Filled(NamedTuple):
    """A configuration without `"auto"`, as a dictionary; where its values come from; and notes on some of them."""

    data: dict[str, Json]
    origins: dict[str, str]
    notes: list[str]
    name: Callable[[str], str]
    """What the file calls a key, by dotted path."""


def fill(config: TopLevel, trace: Trace, inputs: Inputs, file: str) -> Filled:
    """Replaces every `"auto"` of a configuration.

    Args:
        config: A validated `Config`.
        trace: Where its values come from, and what the file calls its keys.
        inputs: What is known about the run.
        file: What to call the configuration in messages.

    Returns:
        The configuration with all three batch sizes.

    Raises:
        ConfigError: As `Config.resolve` says.
    """
    filled = Filled(given(config), dict(trace.origins), [], trace.name)
    data = filled.data
    if (size := data.get("data_parallel_size", inputs.world)) not in (inputs.world, AUTO):
        wrong = f"`data_parallel_size` = {size}, but {inputs.world} devices take different data"
        fail(file, [f"{wrong}; remove the key, or start as many devices"])
    zero = config.zero_optimization
    group, key = zero.shard_group, "mics_shard_size"
    if zero.hpz_group and zero.hpz_group < inputs.world:  # where all fit into one group, it is stage 3 as it is
        group, key = zero.hpz_group, "zero_hpz_partition_size"
    if group and inputs.world % group:
        name = filled.name(f"zero_optimization.{key}")
        wrong = f"`{name}` = {group} does not divide {inputs.world} devices into groups"
        near = [n for n in range(inputs.world, 0, -1) if inputs.world % n == 0 and n <= group][:1]
        fail(file, [f"{wrong}; use {near[0]}, or a multiple of {group} devices"])
    elastic = _apply_elasticity(filled, inputs.world, file)
    if inputs.arguments is not None:
        if "optimizer" not in data:
            data["optimizer"] = {"type": "AdamW", "params": dict(_OPTIMIZER_AUTO)}
            names = ("optimizer", "optimizer.type", "optimizer.params")
            filled.origins.update(dict.fromkeys(names, "auto from training_arguments"))
        _apply_arguments(filled, inputs.arguments, inputs, file, batch=not elastic)
    _apply_hidden_size(filled, inputs.hidden_size)
    unfilled = _settle_the_rest(filled, config, inputs)
    sizes = [None if is_auto(value) else value for value in map(data.get, NAMES)]
    if sizes[0] is None and sizes[1] is None:
        unfilled += [f"`{name}` (needs training_arguments)" for name in NAMES if data.get(name) == AUTO]
    if not inputs.partly and unfilled:
        fail(file, [f'"auto" has nothing to be filled from: {", ".join(unfilled)}; give values'])
    if inputs.partly and sizes[0] is None and sizes[1] is None:
        return filled
    data |= dict(zip(NAMES, resolve_batch(*sizes, world=inputs.world, file=file), strict=True))
    _note_derived_sizes(filled, sizes, inputs.world)
    return filled


def _apply_elasticity(filled: Filled, world: int, file: str) -> bool:
    """Lets `elasticity` decide the batch sizes, if it is switched on."""
    section = filled.data.get("elasticity") or {}
    if section.get("enabled") is not True:
        return False
    given_sizes = [name for name in NAMES if name in filled.data and "elasticity" not in filled.origins.get(name, "")]
    if given_sizes and not section.get("ignore_non_elastic_batch_info"):
        listed = " and ".join(f"`{name}`" for name in given_sizes)
        fail(file, [f"{listed} cannot be given beside `elasticity`, which decides the batch size; remove one of them"])
    total, micro = elastic_batch(section, world, file)
    filled.data.update(zip(NAMES, (total, micro, total // (micro * world)), strict=True))
    filled.origins.update(dict.fromkeys(NAMES, f"derived from elasticity and {world} data shards"))
    return True


def _apply_arguments(filled: Filled, arguments: TrainingArguments, inputs: Inputs, file: str, *, batch: bool) -> None:
    data, disagreements = filled.data, []
    total, micro, _ = map(data.get, NAMES)
    if total in (None, AUTO) and micro is None and batch:
        data[NAMES[1]] = AUTO
        data.setdefault(NAMES[2], AUTO)
    for path, row in FILLS.items():
        parent, key = _parent(data, path)
        if parent is None or not _has_field(data, path) or (path in NAMES and not batch):
            continue
        explicit = bool(arguments.model_fields_set.intersection(row.arguments))
        present, value = key in parent, row.value(arguments, inputs)
        if value is None or not (explicit or is_auto(parent.get(key))):
            continue
        if path == NAMES[1] and not explicit and total not in (None, AUTO):
            continue  # nobody chose the default: the total, which somebody did choose, decides
        if not present or is_auto(parent[key]):
            parent[key] = value
            filled.origins[path] = f"auto from {' and '.join(row.arguments) or f'the rule that it is {value}'}"
            filled.origins.setdefault(path.partition(".")[0], filled.origins[path])
        elif parent[key] != value:
            disagreements.append(f"`{filled.name(path)}` = {parent[key]!r} but {', '.join(row.arguments)} = {value!r}")
    total, kind = _total_steps(arguments, inputs), arguments.lr_scheduler_type
    scheduled = (data.get("scheduler") or {}).get("type") is not None or kind == "constant"
    if total and not scheduled and (warmup := arguments.warmup_updates(total)) > total:
        what = f"a warm-up of {warmup} updates is longer than the run of {total}, whose rate never reaches its highest"
        filled.notes.append(f"training arguments: {what}")
    listed = "; ".join(disagreements)
    fail(file, [f'contradicts the training arguments: {listed}; make them equal or write "auto"'] if listed else [])


def _apply_hidden_size(filled: Filled, hidden_size: HiddenSize) -> None:
    zero = filled.data.get("zero_optimization", {})
    for path, size in _HIDDEN.items():
        name = path.split(".")[1]
        if is_auto(zero.get(name)):
            if name.startswith("stage3_") and zero.get("stage", 0) in (0, 1, 2):
                _drop(filled, zero, path)
                continue
            hidden_size = hidden_size() if callable(hidden_size) else hidden_size
            if hidden_size is not None:
                zero[name] = size(hidden_size)
                filled.origins[path] = f"auto from the hidden size {hidden_size}"


def _settle_the_rest(filled: Filled, config: Section, inputs: Inputs) -> list[str]:
    """Lets the default stand for an "auto" that nothing fills, as DeepSpeed does; returns those where it must not."""
    unfilled = []
    for key in given_keys(config):
        parent, name = _parent(filled.data, key.path)
        if parent is None or not is_auto(parent.get(name)) or key.path in NAMES:
            continue
        if key.path in _OTHER and _is_on(filled.data, _OTHER[key.path]):
            parent[name] = False
            filled.origins[key.path] = f"derived from {_OTHER[key.path]}"
            other = filled.name(_OTHER[key.path])
            filled.notes.append(f'`{filled.name(key.path)}` = "auto" is read as false, because `{other}` is true')
        elif key.path == "jzero.two_level":
            continue  # a node's devices are counted where the mesh is made
        elif key.path in _HIDDEN and inputs.partly:
            unfilled.append(f"`{filled.name(key.path)}` ({_needs(key.path)})")  # which a model tells later
        elif key.verdict.kind != "honoured":
            _drop(filled, parent, key.path)
        elif key.path in FILLS or key.path in _HIDDEN or key.path == STAGE or ".params." in key.path:
            unfilled.append(f"`{filled.name(key.path)}` ({_needs(key.path)})")
        else:
            _drop(filled, parent, key.path)
            filled.notes.append(
                f'`{filled.name(key.path)}` = "auto" is filled by nothing: its default, {key.default!r}, holds'
            )
    return unfilled


def _drop(filled: Filled, parent: dict[str, Json], path: str) -> None:
    """Takes a key out, so that its default holds."""
    del parent[path.rpartition(".")[2]]
    filled.origins[path] = 'default, as "auto" has nothing to be filled from'


_OTHER = {"fp16.enabled": "bf16.enabled", "bf16.enabled": "fp16.enabled"}


def _is_on(data: Mapping[str, Json], path: str) -> bool:
    section, _, key = path.partition(".")
    return (data.get(section) or {}).get(key) is True


def _note_derived_sizes(filled: Filled, sizes: list[int | None], world: int) -> None:
    """Says of each batch size that was not known what it was derived from."""
    known = [name for name, size in zip(NAMES, sizes, strict=True) if size is not None]
    for name in NAMES:
        if name not in known:
            if name == NAMES[2] and len(known) == 1:
                filled.origins.pop(name, None)  # 1, which is the default
                continue
            others = [other for other in NAMES if other != name]
            filled.origins[name] = f"derived from {', '.join(others)} and {world} data shards"


def hidden_size_of(shapes: Iterable[tuple[int, ...]]) -> int | None:
    """The width of a model, from the shapes of its parameters: the size that most of them have as a dimension.

    Attention heads and expanded layers have sizes of their own, and stacked layers have their number; but the width is
    what parameters both read and write, so only sizes that are the last dimension of one parameter and another
    dimension of one count, and norms and biases of that size add to the count.

    Args:
        shapes: Of all parameters.

    Returns:
        The width, or None where no parameter is a matrix.

    Example:
        >>> hidden_size_of([(256, 64), (64, 4, 16), (4, 16, 64), (64, 256), (256, 64)])  # embedding, attention, MLP
        64
    """
    shapes = list(shapes)
    matrices = [shape for shape in shapes if len(shape) > 1]
    if not matrices:
        return None
    written, read = {shape[-1] for shape in matrices}, {n for shape in matrices for n in shape[:-1]}
    candidates = written & read or written | read
    return max(candidates, key=lambda n: (sum(n in shape for shape in shapes), n))


def _needs(path: str) -> str:
    if path == STAGE:
        return "needs the model and the devices: jzero.initialize, `jzero train` and `jzero plan` choose it"
    if path in _HIDDEN:
        return "needs the model's hidden size"
    return f"needs {FILLS[path].needs}" if path in FILLS else "has no counterpart in training_arguments"


def _parent(data: dict[str, Json], path: str) -> tuple[dict[str, Json] | None, str]:
    """The object that holds a dotted key, or None; the precision sections come into being when asked for."""
    *outer, key = path.split(".")
    for name in outer:
        if name in ("fp16", "bf16"):
            data.setdefault(name, {})
        data = data.get(name)  # type: ignore[assignment]
        if not isinstance(data, dict):
            return None, key
    return data, key


def _has_field(data: dict[str, Json], path: str) -> bool:
    """Whether the optimizer or scheduler of this type has the parameter."""
    section, _, key = path.partition(".params.")
    if not key:
        return True
    owner = OptimizerConfig if section == "optimizer" else SchedulerConfig
    schema = owner.subsection("params", data.get(section) or {})
    return schema is not None and key in schema.model_fields
