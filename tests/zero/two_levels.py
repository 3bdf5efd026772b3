"""Runs of one model flat, at two levels and with MiCS's groups, on the same data."""

import functools
from typing import Any

import numpy as np

import jzero
from jzero.models.gpt import GPT
from jzero.models.gpt_config import GPTConfig
from jzero.models.losses import next_token_loss
from tests.helpers import Run, batches, build, mesh_of, train

GROUPS = {"flat": {}, "two levels": "zero_hpz_partition_size", "MiCS": "mics_shard_size"}
VOCAB, SEQ_LEN = 67, 16
EVERY_LEAF = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}


def zero_of(kind: str, n_devices: int, replica: int, zero: dict[str, Any] | None = None) -> dict[str, Any]:
    """The section of a configuration that asks for the groups."""
    groups = {} if kind == "flat" else {GROUPS[kind]: n_devices // replica}
    return {**EVERY_LEAF, **groups, **(zero or {})}


def net(kind: str, replica: int = 2, accumulation: int = 1, *, n_devices: int = 8, zero: Any = None, **sections: Any):
    """An engine for the small model of `tests.helpers`, whose leaves are of every kind."""
    sections = {"zero_optimization": zero_of(kind, n_devices, replica, zero), "gradient_clipping": 0.5, **sections}
    on = {"n_devices": n_devices, "replica": 1 if kind == "flat" else replica}
    return build(3, data(1, n_devices, accumulation)[0], accumulation=accumulation, sections=sections, **on)


@functools.cache
def data(n_steps: int, n_devices: int, accumulation: int) -> list[dict[str, np.ndarray]]:
    """Batches of two rows a device and micro-batch."""
    return batches(n_steps, 2 * n_devices * accumulation)


def gpt(
    kind: str,
    replica: int = 2,
    accumulation: int = 2,
    *,
    scan_layers: bool = True,
    width: int = 32,
    zero: Any = None,
    trainable: Any = None,
    **sections: Any,
) -> jzero.Engine:
    """An engine for a GPT of three rematerialised layers on 8 devices."""
    sizes = {"vocab_size": VOCAB, "seq_len": SEQ_LEN, "d_model": width, "n_layer": 3, "n_head": 4}
    config = GPTConfig(**sizes, scan_layers=scan_layers, remat=True)
    return build(
        3,
        tokens(1, accumulation)[0],
        model=lambda rngs: GPT(config, rngs=rngs),
        loss_fn=next_token_loss,
        replica=1 if kind == "flat" else replica,
        accumulation=accumulation,
        sections={"zero_optimization": zero_of(kind, 8, replica, zero), "gradient_clipping": 0.3, **sections},
        trainable=trainable,
    )


def tokens(n_steps: int, accumulation: int) -> list[dict[str, np.ndarray]]:
    """Batches of a sequence a device and micro-batch."""
    rng = np.random.default_rng(0)
    return [{"tokens": rng.integers(0, VOCAB, (8 * accumulation, SEQ_LEN + 1), dtype=np.int32)} for _ in range(n_steps)]


@functools.cache
def trained(kind: str, replica: int, accumulation: int, n_devices: int, n_steps: int) -> Run:
    """A run of `net`, made once; the flat one is the same for every number of groups."""
    engine = net(kind, replica, accumulation, n_devices=n_devices)
    assert engine.mesh == mesh_of(n_devices, 1 if kind == "flat" else replica)
    return train(engine, data(n_steps, n_devices, accumulation))
