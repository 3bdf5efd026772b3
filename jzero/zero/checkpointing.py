"""A training run's state as a checkpoint: what is written beside its arrays, and how it fits into another run."""

import dataclasses
import functools
import importlib.metadata
import math
import platform
from collections.abc import Mapping

import jax

from jzero.base.types import Json
from jzero.base.version import VERSION
from jzero.checkpoint.run.loading import PathLike, load, read_header
from jzero.checkpoint.run.selection import Selection
from jzero.sharding.placement import path_name
from jzero.sharding.trees import is_placement, replicated
from jzero.zero.build import Functional
from jzero.zero.loss_scale import init_loss_scale
from jzero.zero.state import TrainState

_PACKAGES = ("jax", "flax", "optax", "orbax-checkpoint", "tensorstore", "numpy")


def describe(fns: Functional, state: TrainState, extra: Mapping[str, Json]) -> dict[str, Json]:
    """What a checkpoint says of the run beside its arrays, as JSON; waits for the last step.

    Args:
        fns: the run.
        state: its state.
        extra: the caller's own facts, such as a data position.
    """
    mesh, config = fns.spec.mesh, fns.spec.config
    placements = jax.tree_util.tree_leaves_with_path(fns.placements.params, is_leaf=is_placement)
    step, applied = int(state.step), int(state.applied_steps)
    return {
        "step": step,
        "applied_steps": applied,
        "skipped_steps": step - applied,
        "n_params": sum(math.prod(place.shape) for _, place in placements),
        "aliases": dict(fns.spec.model.aliases),
        "config": config.model_dump(mode="json", exclude_none=True, warnings=False),
        "layout": {
            "stage": fns.spec.plan.stage,
            "precision": config.precision,
            "mesh": dict(mesh.shape),
            "processes": jax.process_count(),
            "divided": {path_name(path): place.dim for path, place in placements if place.dim is not None},
        },
        "versions": {"jzero": VERSION, **_versions()},
        "extra": dict(extra),
    }


@functools.cache
def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: importlib.metadata.version(name) for name in _PACKAGES}}


def restore(
    path: PathLike, fns: Functional, state: TrainState, selection: Selection
) -> tuple[TrainState, dict[str, Json]]:
    """Reads a checkpoint of any layout into the layout of a run.

    The loss scaler continues where both runs scale alike; from or to fp16 it starts as it would in a new run.

    Args:
        path: a checkpoint, or a folder of checkpoints.
        fns: the run.
        state: its present state: leaves that are not loaded keep their values, the others give up their memory.
        selection: what to load, and what may differ.

    Returns:
        The state and the metadata.

    Raises:
        CheckpointError: no complete checkpoint there, one of another model, or a damaged one.
    """
    folder, head = read_header(path)
    same_scaling = _scaling(head.metadata.get("config")) == _scaling(
        fns.spec.config.model_dump(mode="json", warnings=False)
    )
    if same_scaling or not selection.chooses("loss_scale/scale"):
        return load(folder, state, placements=fns.placements, selection=selection, donate=True)
    fresh = jax.jit(lambda: init_loss_scale(fns.spec.config), out_shardings=replicated(fns.spec.mesh))()
    selection = dataclasses.replace(selection, never=(*selection.never, "loss_scale/*"))
    loaded, metadata = load(folder, state, placements=fns.placements, selection=selection, donate=True)
    return dataclasses.replace(loaded, loss_scale=fresh), metadata


def _scaling(config: Json) -> float | None:
    """What decides how the loss is scaled: nothing without fp16, else the static scale, 0 for a dynamic one."""
    fp16 = config.get("fp16") if isinstance(config, Mapping) else None  # others than an engine write checkpoints too
    return fp16.get("loss_scale") if isinstance(fp16, Mapping) and fp16.get("enabled") is True else None
