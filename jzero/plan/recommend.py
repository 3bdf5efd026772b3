"""Which setting to take and why, or what to change where none fits: pure functions of a plan's rows."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jzero.plan.row import Row
from jzero.plan.setting import Setting
from jzero.units import format_bytes

CLOSED_FORM_ERROR = 0.15
"""How far the closed form's peak may be from the compiled program's."""


@dataclass(frozen=True)
class Recommendation:
    """What a plan comes to.

    Attributes:
        setting: the cheapest one that fits; None where none does.
        reason: why, in one or two sentences.
        advice: what else would help, a sentence each.
    """

    setting: Setting | None
    reason: str
    advice: tuple[str, ...] = ()


def cheapest(
    candidates: Iterable[Setting], estimate: Callable[[Setting], Row | None], confirm: Callable[[Row], Row]
) -> Row | None:
    """Finds the first setting that fits, by the closed form and then by what confirms it.

    Args:
        candidates: the cheapest first.
        estimate: the closed form's row; None for a setting that is refused.
        confirm: the same row with the compiled program's figures, if there is a compiler.

    Returns:
        The row; None where nothing fits.
    """
    for setting in candidates:
        row = estimate(setting)
        if row is not None and row.fits and (row := confirm(row)).fits:
            return row
    return None


def recommend(chosen: Row | None, rows: Sequence[Row], *, stages: Sequence[int], remat: bool) -> Recommendation:
    """Says why a setting is the one to take, or what to change.

    Args:
        chosen: from `cheapest`.
        rows: all that were looked at, the cheapest first.
        stages: which were asked for.
        remat: whether rematerialisation of the model's blocks was among what was tried.
    """
    if chosen is None:
        return _nothing_fits(rows, stages, remat)
    setting, first = chosen.setting, rows[0].setting
    found = "the compiled program takes" if chosen.compiled else "by the closed form it takes"
    usable = format_bytes(chosen.cluster.usable)
    took = f"{found} {format_bytes(chosen.peak)} of the {usable} that a GPU has usable"
    advice = [] if setting.offload == "nothing" else list(_more_gpus(rows, "without offloading"))
    if not chosen.compiled and chosen.room < CLOSED_FORM_ERROR * chosen.peak:
        advice.append(f"That is closer than the closed form's error of some {CLOSED_FORM_ERROR:.0%}: compile it.")
    elif not chosen.compiled and chosen.estimated:
        advice.append("Its memory is an estimate, which a compile confirms.")
    missed = [row for row in rows[: rows.index(chosen)] if not row.fits]
    if missed:
        nearest = max(missed, key=lambda row: row.room)
        closest = "; the closest," * (len(missed) > 1) or ":"
        name = f"{nearest.setting}{_batch(nearest.setting, first)}{',' * (len(missed) > 1)}"
        why = f"What is cheaper does not fit{closest} {name} lacks {format_bytes(-nearest.room)}."
        if not nearest.compiled and -nearest.room < CLOSED_FORM_ERROR * nearest.peak:
            advice.append(
                f"By how much {nearest.setting} misses is within the closed form's error of some "
                f"{CLOSED_FORM_ERROR:.0%}: compile all stages to be sure."
            )
    else:
        why = "Nothing that was asked for is cheaper."
    return Recommendation(setting, f"Take {setting}{_batch(setting, first)}: {took}. {why}", tuple(advice))


def _batch(setting: Setting, first: Setting) -> str:
    """How a setting departs from the run as given, apart from stage and offloading."""
    smaller = setting.micro_batch != first.micro_batch
    batch = f", {setting.micro_batch} a GPU x {setting.accumulation} micro-batches" if smaller else ""
    return batch + (", blocks rematerialised" if setting.remat else "")


def _nothing_fits(rows: Sequence[Row], stages: Sequence[int], remat: bool) -> Recommendation:
    if not rows:
        return Recommendation(None, "Every setting is refused; the reasons stand below the table.")
    best = max(rows, key=lambda row: row.room)
    setting = f"{best.setting}{_batch(best.setting, rows[0].setting)}"
    reason = f"Nothing fits: even {setting} takes {format_bytes(best.peak)}, {format_bytes(-best.room)} too much."
    advice = list(_more_gpus(rows, "at this batch size per GPU"))
    if 3 not in stages:
        advice.append("Add stage 3 to --stages: it divides parameters too.")
    largest = max(("gathered_weights", "activations"), key=lambda part: best.bytes_by_part[part])
    alone = best.bytes_by_part[largest]
    if largest == "gathered_weights" and alone > best.cluster.usable / 2:
        advice.append(
            f"Gathered weights alone take {format_bytes(alone)}: single layers are too large for this GPU, and only "
            "tensor parallelism divides those, which this version does not have; use a GPU with more memory."
        )
    elif alone > best.peak / 4:
        advice.append(f"Of that, {format_bytes(alone)} are activations: {_less_activations(best, remat)}.")
    return Recommendation(None, reason, tuple(advice))


def _less_activations(best: Row, remat: bool) -> str:
    smaller = "" if best.setting.micro_batch == 1 else "a smaller train_micro_batch_size_per_gpu, "
    recompute = "" if remat else "rematerialised blocks (model.remat, or jzero.remat in the DeepSpeed part), "
    return f"{smaller}{recompute}shorter sequences or inputs of blocks in host memory (cpu_checkpointing) take less"


def _more_gpus(rows: Sequence[Row], how: str) -> Iterable[str]:
    """How many GPUs would hold it: what the stage divides gets less with each, the rest stays."""
    needs: dict[int, Row] = {}
    for row in rows:
        left = row.cluster.usable - (row.closed_form_peak - row.divided)
        if row.setting.offload == "nothing" and row.divided and left > 0:
            per_node = row.cluster.gpus_per_node
            n_gpus = math.ceil(row.cluster.n_gpus * row.divided / left / per_node) * per_node
            needs.setdefault(n_gpus, row)
    if needs:
        n_gpus, row = min(needs.items())
        if n_gpus > row.cluster.n_gpus:
            yield (
                f"About {n_gpus:,} such GPUs would hold {row.setting}{_batch(row.setting, rows[0].setting)} {how}: "
                f"{format_bytes(row.divided)} of its memory are divided by their number."
            )
