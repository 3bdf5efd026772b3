"""`"auto"` where only a plan can decide: the stage and the micro-batch, for the devices that are here.

The closed form decides, in seconds and before anything is compiled, with its error as a margin. What the file offloads
stays offloaded, and `train_batch_size` stays what it is, so that the training does not depend on what is chosen.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from jzero.base.types import Batch, Device, Json, LossFn, Mask
from jzero.config import Config, TrainingArguments
from jzero.config.resolve.auto import STAGE
from jzero.config.resolve.batch import NAMES
from jzero.config.schema.scalars import is_auto
from jzero.errors import ConfigError
from jzero.offload.host_budget import free_memory
from jzero.plan.hardware.cluster import USABLE, Cluster
from jzero.plan.hardware.figures import gpu_figures, is_known
from jzero.plan.search.recommendation import CLOSED_FORM_ERROR, Recommendation, cheapest, recommend
from jzero.plan.search.row import Row
from jzero.plan.search.setting import Setting, fallbacks, settings
from jzero.plan.search.workload import Workload, startable
from jzero.plan.training import Training
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


class _Open(NamedTuple):
    """What a configuration leaves to a plan."""

    stage: bool
    micro_batch: bool

    @property
    def names(self) -> str:
        """The keys, for sentences."""
        return " and ".join(f"`{name}`" for name, is_open in zip((STAGE, _MICRO), self, strict=True) if is_open)


def resolve_auto(
    config: Config,
    *,
    mesh: Mesh | None,
    model: object,
    loss_fn: LossFn,
    sample_batch: Batch,
    optimizer: optax.GradientTransformation | None = None,
    trainable: Trainable | Mask | None = None,
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
    left_open = _Open(is_auto(config.zero_optimization.stage), _micro_is_open(config, training_arguments))
    if not any(left_open):
        return config
    _check(config, mesh, left_open)
    start = startable(config, sample_batch)
    training = Training(model, loss_fn, start, sample_batch, optimizer, trainable, training_arguments, hidden_size)
    found = _recommended(Workload(_here(mesh, left_open.names), training), left_open)
    setting = found.setting
    if setting is None:
        reason = found.reason[0].lower() + found.reason[1:]
        raise ConfigError(f'{left_open.names} = "auto": {" ".join((reason, *found.advice))}')
    values: dict[str, Json] = {STAGE: setting.stage} if left_open.stage else {}
    if left_open.micro_batch:
        sizes = (start.train_batch_size, setting.micro_batch, setting.accumulation)
        values |= dict(zip(NAMES, sizes, strict=True))
    why = found.reason.removeprefix("Take ").removesuffix(".")
    return config.replaced(values, origin="auto from the plan", note=f'{left_open.names} = "auto" became {why}')


def _recommended(run: Workload, left_open: _Open) -> Recommendation:
    """What to take by the closed form, of the settings that differ in what is open alone."""
    base = run.as_given()
    stages = (0, 1, 2, 3) if left_open.stage else (base.stage,)
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
        lambda setting: fallbacks(setting, divisible=left_open.micro_batch, remat=False),
        estimate,
        None,
    )
    if not rows:
        raise refused[0]
    on = lambda setting, n_gpus: run.on(n_gpus, setting).estimate(setting, batch=True)
    return recommend(chosen, list(rows.values()), base=base, stages=stages, remat=False, on=on)


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


def _check(config: Config, mesh: Mesh | None, left_open: _Open) -> None:
    """Refuses what the closed form does not know."""
    names = left_open.names
    if mesh is not None and mesh.shape["shard"] != mesh.size:
        raise ConfigError(
            f'{names} = "auto" is for a mesh with all devices on `shard`, not {dict(mesh.shape)}; give a number.'
        )
    if config.zero_optimization.swaps_optimizer:
        raise ConfigError(f'{names} = "auto" cannot be planned with the optimizer on NVMe; give a number.')
    total = config.train_batch_size
    if left_open.micro_batch and (total is None or is_auto(total)) and jax.process_count() > 1:
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


def _available(devices: Sequence[Device]) -> int | None:
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
