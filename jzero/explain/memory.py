"""What each device holds and why: the live bytes beside the ZeRO paper's formula.

What lasts between steps is read from the live arrays. What exists only inside a step, gradients and the parameters in
the compute dtype, is worked out from the placements and the stage's row in `jzero.zero.stages`. The formula is that of
`jzero.explain.paper`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from rich.table import Table

from jzero.base.types import PyTree
from jzero.base.units import format_bytes
from jzero.explain.paper import PaperTerm, paper_terms
from jzero.explain.parameters import explain, sent_by_links
from jzero.offload.host_budget import Budget
from jzero.sharding.host_memory import PINNED_HOST
from jzero.sharding.placement import Placement
from jzero.sharding.trees import is_placement, split
from jzero.zero.build import Functional
from jzero.zero.precision import DTYPES
from jzero.zero.stages import Gather, StagePlan
from jzero.zero.state import TrainState


class LiveRun(Protocol):
    """What is looked at: a `jzero.Engine`."""

    @property
    def functional(self) -> Functional:
        """The functions and everything fixed about the run."""
        ...

    @property
    def state(self) -> TrainState:
        """The live state."""
        ...


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


def memory_breakdown(run: LiveRun) -> list[MemoryPart]:
    """Lists what a device holds.

    Args:
        run: an engine, from `jzero.initialize`.

    Returns:
        The parts, lasting ones first.
    """
    spec, plan, state = run.functional.spec, run.functional.spec.plan, run.state
    placements = jax.tree.leaves(run.functional.placements.params, is_leaf=is_placement)
    n_params, n_shards = sum(math.prod(p.shape) for p in placements), spec.mesh.shape["shard"]
    n_groups = spec.mesh.shape["replica"] if spec.two_level else 1
    terms, spread = paper_terms(plan, n_shards, n_groups), _spread(placements, n_shards if plan.shards_state else 1)
    gathered = terms.gathered_weights
    swaps = run.functional.host_budget.in_files > 0
    name, params = ("master parameters", terms.parameters)
    if swaps:
        name, params = "parameters, as they compute", terms.parameters._replace(bytes_each=2)
    rest = (state.model_state, state.loss_scale, state.step, state.applied_steps, state.rng)
    grads_bytes = 0 if run.functional.spec.offload.fetches_at_use else _grads_bytes(run)
    grads_why = f"{_grads_dtype(run)}, {plan.reduce.value}" + "; its group's part, until the end" * spec.two_level

    def part(name: str, lasts: bool, n_bytes: int, term: PaperTerm | None, why: str) -> MemoryPart:
        paper, formula = (None, "") if term is None else (term.n_bytes(n_params), term.formula)
        return MemoryPart(name, lasts, False, n_bytes, paper, formula, why)

    as_params = "lies like the parameters it belongs to"
    return [
        part(name, True, device_bytes(state.params), params, spread),
        part("optimizer state", True, device_bytes(state.opt_state), terms.optimizer_state, as_params),
        part("model state, scaler, rng", True, device_bytes(rest), None, "small, so a copy on each device"),
        part("gradients", False, grads_bytes, terms.gradients, grads_why),
        *(
            [part("its group's part of parameters", False, _group_bytes(run), gathered, _GROUP_WHY)]
            if spec.two_level and not spec.offload.fetches_at_use
            else []
        ),
        part(
            "parameters in compute",
            False,
            _compute_bytes(run, placements),
            None if spec.two_level else gathered,
            _compute_why(run, plan),
        ),
        *_offloaded(run.functional.host_budget),
    ]


def _offloaded(needed: Budget) -> list[MemoryPart]:
    """What is in host memory and in files, as far as anything is."""
    swaps = needed.in_files > 0
    params = f"on the host: parameters{', as they compute' if swaps else ' and moments'}"
    params_why = "fetched at each use" if swaps else "pass through the device in pieces"
    grads, grads_why = "on the host: gradients", "leave the backward pass as they arise"
    files, files_why = (
        "in files: parameters and moments",
        "read, updated on the CPU and written in every step; the disk takes it twice",
    )
    parts = [
        MemoryPart(params, True, True, needed.state, None, "", params_why),
        MemoryPart(grads, False, True, needed.gradients, None, "", grads_why),
        MemoryPart(files, True, True, needed.in_files, None, "", files_why),
    ]
    return [part for part in parts if part.n_bytes]


def device_bytes(tree: PyTree) -> int:
    """Bytes that a pytree of live arrays occupies on the fullest device of this process, host memory left out."""
    totals = dict.fromkeys(jax.local_devices(), 0)
    for leaf in [x for x in jax.tree.leaves(tree) if x.sharding.memory_kind != PINNED_HOST]:
        for shard in leaf.addressable_shards:
            totals[shard.device] += shard.data.nbytes
    return max(totals.values())


def memory_table(run: LiveRun) -> Table:
    """Renders `memory_breakdown` for the screen."""
    parts = memory_breakdown(run)
    n_params = sum(math.prod(p.shape) for p in jax.tree.leaves(run.functional.placements.params, is_leaf=is_placement))
    table = Table(
        title=f"What each device holds at stage {run.functional.spec.plan.stage} (P = {n_params:,} parameters)",
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
    if (needed := run.functional.host_budget).state:
        copies = f"{format_bytes(needed.to_device)} in, {format_bytes(needed.to_host)} out"
        why = f"in every step: {needed.seconds:.2g} s at least on PCIe 4.0 x16"
        table.add_row("over PCIe", copies, "-", why)
    if (mesh := run.functional.spec.mesh).shape["replica"] > 1:
        sent = sent_by_links(explain(run.functional), mesh.shape)
        table.add_section()
        inside = f"to the {mesh.shape['shard']} devices of its group in every step, most at each use"
        table.add_row("sent inside a group", format_bytes(sent.inside), "-", inside)
        across = f"to the {mesh.shape['replica']} groups, once a step"
        table.add_row("sent across groups", format_bytes(sent.across), "-", across)
    return table


def _paper(formula: str, n_bytes: float | None) -> str:
    return "-" if n_bytes is None else f"{formula} = {format_bytes(n_bytes)}"


def _spread(placements: Sequence[Placement], n_shards: int) -> str:
    """Where the parameters lie, in words."""
    if n_shards == 1:
        return "whole on each device"
    whole = [math.prod(p.shape) for p in placements if p.dim is None]
    n_groups = max((p.n_groups for p in placements), default=1)
    text = f"{len(placements) - len(whole)} arrays divided over {n_shards * n_groups} devices"
    text += f" in {n_groups} groups" * (n_groups > 1)
    if whole:
        text += f"; {len(whole)} small ones whole ({sum(whole):,} elements, none above {max(whole):,})"
    return text


def _grads_dtype(run: LiveRun) -> str:
    """In which gradients are added up over micro-batches; one micro-batch alone gives them in fp32."""
    accumulated = jnp.dtype(run.functional.spec.precision.accumulate)
    names = {jnp.dtype(dtype): name for name, dtype in DTYPES.items()}
    return names[accumulated] if run.functional.spec.config.gradient_accumulation_steps > 1 else "fp32"


def _grads_bytes(run: LiveRun) -> int:
    """The accumulator: trainable parameters only, in shards where every micro-batch scatters."""
    trained, _ = split(run.functional.placements.params, run.functional.spec.trainable)
    sharded = run.functional.spec.plan.scatters_at_use
    shapes = [p.in_group.shard_shape if sharded else p.shape for p in jax.tree.leaves(trained, is_leaf=is_placement)]
    return jnp.dtype(DTYPES[_grads_dtype(run)]).itemsize * sum(map(math.prod, shapes))


_GROUP_WHY = "gathered over the groups once at the start of the step"


def _group_bytes(run: LiveRun) -> int:
    """What a device has of its group's copy of the parameters at two levels, as they compute."""
    spec = run.functional.spec
    placements = jax.tree.leaves(spec.placements, is_leaf=is_placement)
    casts = jax.tree.leaves(spec.casts, is_leaf=lambda x: isinstance(x, tuple))
    dtypes = [cast[-1] if cast else x.dtype for cast, x in zip(casts, jax.tree.leaves(run.state.params), strict=True)]
    each = zip(placements, dtypes, strict=True)
    return sum(math.prod(p.in_group.shard_shape) * jnp.dtype(d).itemsize for p, d in each if p.dim is not None)


def _compute_bytes(run: LiveRun, placements: Sequence[Placement]) -> int:
    """What the loss reads besides the master parameters: gathered or cast copies."""
    casts = jax.tree.leaves(run.functional.spec.casts, is_leaf=lambda x: isinstance(x, tuple))
    master_params = jax.tree.leaves(run.state.params)
    at_use = run.functional.spec.plan.gather is Gather.AT_USE
    copies = []
    for i, (placement, cast, master) in enumerate(zip(placements, casts, master_params, strict=True)):
        dtype = cast[-1] if cast else master.dtype
        is_copy = placement.dim is not None or bool(cast)
        scanned = run.functional.scanned.get(i, ()) if at_use else ()  # a loop gathers one layer at a time
        shape = [n for d, n in enumerate(placement.shape) if d not in scanned]
        copies.append(dtype.itemsize * math.prod(shape) if is_copy else 0)
    return max(copies) if at_use else sum(copies)


def _compute_why(run: LiveRun, plan: StagePlan) -> str:
    is_copy = run.functional.spec.config.precision != "fp32" or plan.gather is not Gather.NEVER
    copy = f"{run.functional.spec.config.precision} copy: " if is_copy else ""
    at_most = "; at most the largest array at a time" if plan.gather is Gather.AT_USE else ""
    return f"{copy}{plan.gather.value}{at_most}"
