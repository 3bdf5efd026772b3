"""The steps that the benchmarks compare: jzero's and the hand-written ones, built alike, and compiled for GPUs.

Import this before jax.
"""

import gc
import os
import time
from collections.abc import Callable
from typing import Any

# The partitioner's complaints about the hand-written steps would fill the screen; what they cost is measured instead.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import jzero  # noqa: F401  # before jax, so that the CUDA plugin stays quiet

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
from models import Subject
from peers import Peer, deepspeed_config, hand_written

from jzero.config import Config
from jzero.plan import compile_only
from jzero.start import functional

PHASES = ("build", "trace", "compile")


def jzero_step(subject: Subject, mesh: Any, *, stage: int, gradients_in: str | None = None) -> Peer:
    """jzero's step in bf16; gradients travel in fp32, unless `communication_data_type` is given.

    In the hand-written steps the compiler leaves most of them in bf16.
    """
    rows = mesh.size * subject.rows_per_gpu
    config = deepspeed_config(stage, rows, "bf16")
    if gradients_in is not None:
        config["communication_data_type"] = gradients_in
    fns = functional(
        model=subject.model,
        loss_fn=subject.loss_fn,
        config=Config.load(config).resolve(world=mesh.size),
        sample_batch=subject.batch(rows),
        mesh=mesh,
    )
    return Peer(fns.step, lambda: fns.init(np.uint32(0)), fns.state, fns.batch)


def hand_written_step(subject: Subject, mesh: Any, *, sharded: bool = True, constrained_at_use: bool = False) -> Peer:
    """The hand-written step in bf16; the same work."""
    return hand_written(
        subject.model,
        subject.loss_fn,
        mesh,
        subject.batch(mesh.size * subject.rows_per_gpu),
        sharded=sharded,
        constrained_at_use=constrained_at_use,
        stacked=subject.stacked,
        compute_dtype=jnp.bfloat16,
    )


def timed(build: Callable[[], Peer]) -> tuple[jax.stages.Compiled, dict[str, float], dict[str, float]]:
    """Builds, traces and compiles a step from nothing.

    Args:
        build: returns the step.

    Returns:
        The compiled step, and the seconds of each phase: on the clock, and of all processors.
    """
    jax.clear_caches()
    gc.collect()
    marks = [(time.perf_counter(), time.process_time())]
    mark = lambda: marks.append((time.perf_counter(), time.process_time()))
    peer = build()
    mark()
    lowered = peer.step.lower(peer.state, peer.batch)
    mark()
    compiled = compile_only(lowered)
    mark()
    clock, processor = (
        {phase: marks[i + 1][kind] - marks[i][kind] for i, phase in enumerate(PHASES)} for kind in (0, 1)
    )
    return compiled, clock, processor
