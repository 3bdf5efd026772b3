"""What each device holds and why: the live bytes beside the ZeRO paper's formula.

What lasts between steps is read from the live arrays. What exists only inside a step, gradients and the parameters in
the compute dtype, is worked out from the placements and the stage's row in `jzero.zero.stages`. The formula is that of
mixed-precision Adam (Rajbhandari et al. 2020, section 3.1): 16 bytes a parameter, of which a stage divides its part by
the number of shards.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from rich.table import Table

from jzero.base.units import format_bytes
from jzero.sharding.host_memory import PINNED_HOST
from jzero.sharding.trees import is_placement, split
from jzero.zero.precision import DTYPES
from jzero.zero.stages import Gather, StagePlan

if TYPE_CHECKING:
    from jzero.engine import Engine


@dataclass(frozen=True)
class MemoryPart:
    """One part of a device's memory.

    Attributes:
        part: what it is.
        lasts: between steps; else it exists only inside a step.
        on_host: in host memory; else on the device.
        n_bytes: bytes on the fullest device of this process.
        paper_bytes: what the paper's formula says, None where it has no term.
        formula: the paper's term, as text.
        why: the reason in words.
    """

    part: str
    lasts: bool
    on_host: bool
    n_bytes: int
    paper_bytes: float | None
    formula: str
    why: str


def memory_breakdown(engine: "Engine") -> list[MemoryPart]:
    """Lists what a device holds.

    Args:
        engine: from `jzero.initialize`.

    Returns:
        The parts, lasting ones first.
    """
    plan, state = engine.stage_plan, engine.state
    placements = jax.tree.leaves(engine.placements, is_leaf=is_placement)
    sizes = [math.prod(p.shape) for p in placements]
    n_params, n_shards = sum(sizes), engine.mesh.shape["shard"]
    n_state = n_shards if plan.shards_state else 1
    n_grads = n_shards if plan.scatters_at_use else 1
    n_compute = n_shards if plan.gather is Gather.AT_USE else 1

    def part(name: str, lasts: bool, n_bytes: int, bytes_each: int | None, shards: int, why: str) -> MemoryPart:
        paper = None if bytes_each is None else bytes_each * n_params / shards
        formula = "" if bytes_each is None else f"{bytes_each}P" if shards == 1 else f"{bytes_each}P/{shards}"
        return MemoryPart(name, lasts, False, n_bytes, paper, formula, why)

    spread = _spread(placements, n_state)
    needed, at_use = engine.functional.host_budget, engine.functional.spec.offload_plan.at_use
    swaps = needed.in_files > 0
    hosted = [
        MemoryPart(
            f"on the host: parameters{', as they compute' if swaps else ' and moments'}",
            True,
            True,
            needed.state,
            None,
            "",
            "fetched at each use" if swaps else "pass through the device in pieces",
        ),
        MemoryPart(
            "on the host: gradients", False, True, needed.gradients, None, "", "leave the backward pass as they arise"
        ),
    ]
    if swaps:
        why = "read, updated on the CPU and written in every step; the disk takes it twice"
        hosted.append(MemoryPart("in files: parameters and moments", True, True, needed.in_files, None, "", why))
    rest = (state.model_state, state.loss_scale, state.step, state.applied_steps, state.rng)
    return [
        part(
            "parameters, as they compute" if swaps else "master parameters",
            True,
            device_bytes(state.params),
            2 if swaps else 4,
            n_state,
            spread,
        ),
        part(
            "optimizer state", True, device_bytes(state.opt_state), 8, n_state, "lies like the parameters it belongs to"
        ),
        part("model state, scaler, rng", True, device_bytes(rest), None, 1, "small, so a copy on each device"),
        part(
            "gradients",
            False,
            0 if at_use else _grads_bytes(engine),
            2,
            n_grads,
            f"{_grads_dtype(engine)}, {plan.reduce.value}",
        ),
        part(
            "parameters in compute", False, _compute_bytes(engine, placements), 2, n_compute, _compute_why(engine, plan)
        ),
        *[part for part in hosted if part.n_bytes],
    ]


def device_bytes(tree: Any) -> int:
    """Bytes that a pytree of live arrays occupies on the fullest device of this process, host memory left out."""
    totals = dict.fromkeys(jax.local_devices(), 0)
    for leaf in [x for x in jax.tree.leaves(tree) if x.sharding.memory_kind != PINNED_HOST]:
        for shard in leaf.addressable_shards:
            totals[shard.device] += shard.data.nbytes
    return max(totals.values())


def memory_table(engine: "Engine") -> Table:
    """Renders `memory_breakdown` for the screen."""
    parts = memory_breakdown(engine)
    n_params = sum(math.prod(p.shape) for p in jax.tree.leaves(engine.placements, is_leaf=is_placement))
    table = Table(
        title=f"What each device holds at stage {engine.stage_plan.stage} (P = {n_params:,} parameters)",
        title_justify="left",
        title_style="bold",
    )
    table.add_column("part")
    table.add_column("bytes", justify="right")
    table.add_column("ZeRO paper", justify="right")
    table.add_column("why", overflow="fold")
    for lasts in (True, False):
        rows = [part for part in parts if part.lasts is lasts and not part.on_host]
        for row in rows:
            table.add_row(row.part, format_bytes(row.n_bytes), _paper(row.formula, row.paper_bytes), row.why)
        table.add_section()
        total = sum(row.n_bytes for row in rows)
        paper = sum(row.paper_bytes or 0 for row in rows)
        what = "lasts between steps" if lasts else "at most inside a step"
        table.add_row(
            what, format_bytes(total), format_bytes(paper), "activations come on top" * (not lasts), style="bold"
        )
        table.add_section()
    for row in [part for part in parts if part.on_host]:
        table.add_row(row.part, format_bytes(row.n_bytes), "-", row.why)
    if (needed := engine.functional.host_budget).state:
        copies = f"{format_bytes(needed.to_device)} in, {format_bytes(needed.to_host)} out"
        why = f"in every step: {needed.seconds:.2g} s at least on PCIe 4.0 x16"
        table.add_row("over PCIe", copies, "-", why)
    return table


def _paper(formula: str, n_bytes: float | None) -> str:
    return "-" if n_bytes is None else f"{formula} = {format_bytes(n_bytes)}"


def _spread(placements: list[Any], n_shards: int) -> str:
    """Where the parameters lie, in words."""
    if n_shards == 1:
        return "whole on each device"
    whole = [math.prod(p.shape) for p in placements if p.dim is None]
    text = f"{len(placements) - len(whole)} arrays divided over {n_shards} devices"
    if whole:
        text += f"; {len(whole)} small ones whole ({sum(whole):,} elements, none above {max(whole):,})"
    return text


def _grads_dtype(engine: "Engine") -> str:
    """In which gradients are added up over micro-batches; one micro-batch alone gives them in fp32."""
    accumulated = jnp.dtype(engine.functional.spec.precision.accumulate)
    names = {jnp.dtype(dtype): name for name, dtype in DTYPES.items()}
    return names[accumulated] if engine.config.gradient_accumulation_steps > 1 else "fp32"


def _grads_bytes(engine: "Engine") -> int:
    """The accumulator: trainable parameters only, in shards where every micro-batch scatters."""
    trained, _ = split(engine.placements, engine.functional.spec.trainable)
    sharded = engine.stage_plan.scatters_at_use
    shapes = [p.shard_shape if sharded else p.shape for p in jax.tree.leaves(trained, is_leaf=is_placement)]
    return jnp.dtype(DTYPES[_grads_dtype(engine)]).itemsize * sum(map(math.prod, shapes))


def _compute_bytes(engine: "Engine", placements: list[Any]) -> int:
    """What the loss reads besides the master parameters: gathered or cast copies."""
    casts = jax.tree.leaves(engine.functional.spec.casts, is_leaf=lambda x: isinstance(x, tuple))
    master_params = jax.tree.leaves(engine.state.params)
    at_use = engine.stage_plan.gather is Gather.AT_USE
    copies = []
    for i, (placement, cast, master) in enumerate(zip(placements, casts, master_params, strict=True)):
        dtype = cast[-1] if cast else master.dtype
        is_copy = placement.dim is not None or bool(cast)
        scanned = engine.functional.scanned.get(i, ()) if at_use else ()  # a loop gathers one layer at a time
        shape = [n for d, n in enumerate(placement.shape) if d not in scanned]
        copies.append(dtype.itemsize * math.prod(shape) if is_copy else 0)
    return max(copies) if at_use else sum(copies)


def _compute_why(engine: "Engine", plan: StagePlan) -> str:
    is_copy = engine.config.precision != "fp32" or plan.gather is not Gather.NEVER
    copy = f"{engine.config.precision} copy: " if is_copy else ""
    at_most = "; at most the largest array at a time" if plan.gather is Gather.AT_USE else ""
    return f"{copy}{plan.gather.value}{at_most}"
