"""`"auto"` where only a plan can decide: the stage and the micro-batch, for the devices that are here.

The closed form decides, in seconds and before anything is compiled, with its error as a margin. What the file offloads
stays offloaded, and `train_batch_size` stays what it is, so that the training does not depend on what is chosen.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jzero.config import Config, TrainingArguments
from jzero.config.resolve.auto import STAGE
from jzero.config.resolve.batch import NAMES
from jzero.config.schema.scalars import is_auto
from jzero.errors import ConfigError
from jzero.offload.host_budget import free_memory
from jzero.plan.hardware.cluster import USABLE, Cluster
from jzero.plan.hardware.figures import gpu_figures, is_known
from jzero.plan.search.recommend import CLOSED_FORM_ERROR, cheapest, recommend
from jzero.plan.search.row import Row
from jzero.plan.search.setting import Setting, fallbacks, settings
from jzero.plan.search.workload import Workload, startable
from jzero.sharding.mesh import n_data_shards
from jzero.zero.shapes import Trainable

_TOTAL, _MICRO, _ACCUMULATION = NAMES
_STAND_IN = "h100-80g"
"""Whose speeds are reckoned with on devices that there are no figures of: they only say which setting is faster."""


@dataclass(frozen=True)
class _Here(Cluster):
    """The devices of this run.

    Attributes:
        available: bytes of one of them that a program can have.
    """

    available: int = 0

    @property
    def usable(self) -> int:
        """What is left of them beside the closed form's error."""
        return int(self.available / (1 + CLOSED_FORM_ERROR))


def resolve_auto(
    config: Config,
    *,
    mesh: Mesh | None,
    model: Any,
    loss_fn: Callable,
    sample_batch: Any,
    optimizer: optax.GradientTransformation | None = None,
    trainable: Trainable | Any | None = None,
    training_arguments: TrainingArguments | None = None,
    hidden_size: int | None = None,
) -> Config:
    """Replaces a stage of `"auto"`, and a micro-batch of `"auto"` that no training arguments fill.

    Args:
        config: as loaded.
        mesh: of the run, all of it on the axis `shard`; all devices if None.
        model: see `jzero.initialize`.
        loss_fn: see `jzero.initialize`.
        sample_batch: see `jzero.initialize`; its leading dimension is the `train_batch_size` where the configuration
            has none.
        optimizer: see `jzero.initialize`.
        trainable: see `jzero.initialize`.
        training_arguments: what else is filled.
        hidden_size: the model's width; read off the parameters if None.

    Returns:
        The configuration, with a note on what was chosen and why; the same one where nothing is open.

    Raises:
        ConfigError: nothing fits, or it cannot be known what would.
    """
    stage_is_open = is_auto(config.zero_optimization.stage)
    micro_is_open = _micro_is_open(config, training_arguments)
    names = " and ".join(f"`{name}`" for name, is_open in ((STAGE, stage_is_open), (_MICRO, micro_is_open)) if is_open)
    if not names:
        return config
    _check(config, mesh, names, micro_is_open)
    rest = {"loss_fn": loss_fn, "sample_batch": sample_batch, "optimizer": optimizer, "trainable": trainable}
    start = startable(config, sample_batch)
    run = Workload(_here(mesh, names), start, model, None, training_arguments, hidden_size, rest)
    base = run.as_given()
    stages = (0, 1, 2, 3) if stage_is_open else (base.stage,)
    rows: dict[Setting, Row] = {}
    refused: list[ConfigError] = []

    def estimate(setting: Setting) -> Row | None:
        try:
            rows[setting] = run.estimate(setting, batch=setting.micro_batch != base.micro_batch)
        except ConfigError as error:
            refused.append(error)
        return rows.get(setting)

    chosen = cheapest(
        [setting for setting in settings(base, stages) if setting.offload == base.offload],
        lambda setting: fallbacks(setting, divisible=micro_is_open, remat=False),
        estimate,
        None,
    )
    if not rows:
        raise refused[0]
    on = lambda setting, n_gpus: run.on(n_gpus, setting).estimate(setting, batch=True)
    found = recommend(chosen, list(rows.values()), base=base, stages=stages, remat=False, on=on)
    if chosen is None:
        reason = found.reason[0].lower() + found.reason[1:]
        raise ConfigError(f'{names} = "auto": {" ".join((reason, *found.advice))}')
    setting = chosen.setting
    values: dict[str, Any] = {STAGE: setting.stage} if stage_is_open else {}
    if micro_is_open:
        sizes = (start.train_batch_size, setting.micro_batch, setting.accumulation)
        values |= dict(zip(NAMES, sizes, strict=True))
    why = found.reason.removeprefix("Take ").removesuffix(".")
    return config.replaced(values, origin="auto from the plan", note=f'{names} = "auto" became {why}')


def _micro_is_open(config: Config, arguments: TrainingArguments | None) -> bool:
    """Whether the micro-batch is asked for, and follows from nothing else."""
    micro, accumulation = config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps
    if not is_auto(micro) or (config.elasticity and config.elasticity.enabled):
        return False
    if arguments is None:
        return accumulation is None or is_auto(accumulation)
    total_decides = isinstance(config.train_batch_size, int) and accumulation is None
    return total_decides and not arguments.model_fields_set & {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
    }


def _check(config: Config, mesh: Mesh | None, names: str, micro_is_open: bool) -> None:
    """Refuses what the closed form does not know."""
    if mesh is not None and mesh.shape["shard"] != mesh.size:
        raise ConfigError(
            f'{names} = "auto" is for a mesh with all devices on `shard`, not {dict(mesh.shape)}; give a number.'
        )
    if config.zero_optimization.swaps_optimizer:
        raise ConfigError(f'{names} = "auto" cannot be planned with the optimizer on NVMe; give a number.')
    total = config.train_batch_size
    if micro_is_open and (total is None or is_auto(total)) and jax.process_count() > 1:
        raise ConfigError(f'{names} = "auto" needs a `{_TOTAL}` where there are several processes; give one.')


def _here(mesh: Mesh | None, names: str) -> _Here:
    """The devices of a run as a cluster."""
    devices = jax.devices() if mesh is None else list(mesh.devices.flat)
    local = [device for device in devices if device.process_index == jax.process_index()]
    kind = local[0].device_kind
    available = _available(local)
    if available is None:
        raise ConfigError(
            f'{names} = "auto": it is not known how much memory the devices have ({kind}); give a number.'
        )
    if jax.process_count() > 1:  # all must choose alike
        available = int(np.min(multihost_utils.process_allgather(np.int32(available >> 20)))) << 20
    on_this_host = max(len(local), int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1))
    n_devices = len(devices) if mesh is None else n_data_shards(mesh)
    gpu = gpu_figures(kind).name if is_known(kind) else _STAND_IN
    return _Here(gpu, n_devices, math.gcd(n_devices, on_this_host), available=available)


def _available(devices: Sequence[Any]) -> int | None:
    """Bytes that a program can have on each device: of simulated ones, their share of the host's free memory."""
    if devices[0].platform == "cpu":
        free = free_memory()
        return None if free is None else free // len(devices)
    stats = [device.memory_stats() or {} for device in devices]
    limits = [s["bytes_limit"] - s.get("bytes_in_use", 0) for s in stats if "bytes_limit" in s]
    if limits:
        return min(limits)
    kind = devices[0].device_kind
    return int(USABLE * gpu_figures(kind).memory) if is_known(kind) else None
