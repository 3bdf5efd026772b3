"""Which setting to take and why, or what to change where none fits: pure functions of a plan's rows."""

import bisect
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from jzero.base.units import format_bytes
from jzero.plan.search.row import Row
from jzero.plan.search.setting import Setting

CLOSED_FORM_ERROR = 0.15
"""How far the closed form's peak may be from the compiled program's."""

ESTIMATE_ERROR = 0.25
"""The same of rows that are marked as estimated."""

SAME_SPEED = 0.02
"""Settings whose times differ by less are as fast as each other."""


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


Cost = tuple[float, ...]
"""Settings compare by it: the cheaper one is less."""


def cost(row: Row) -> Cost:
    """What settings are ordered by: the estimated time per sample, and simplicity where that ties.

    Of settings that are as fast as each other the lower stage comes first, then the one without groups, then less
    offloading and the larger micro-batch.

    Args:
        row: what counts is its time by the closed form, which all rows have.
    """
    setting = row.setting
    n_samples = setting.micro_batch * setting.accumulation * row.cluster.n_gpus
    offloaded = ("nothing", "optimizer", "optimizer and parameters").index(setting.offload)
    speed = round(math.log(row.closed_form_time.middle / n_samples) / math.log1p(SAME_SPEED))
    grouped = ("none", "two levels", "MiCS").index(setting.groups)
    return speed, offloaded > 0, setting.stage, grouped, offloaded, -setting.micro_batch


def costs(rows: Mapping[Setting, Row]) -> Mapping[Setting, Cost]:
    """The cost of each setting; rematerialisation is never cheaper than doing without.

    It computes more to write and read less, and the estimate is not sure enough of which of the two is slower to change
    a model that fits as it is.

    Args:
        rows: by setting.
    """
    return {setting: _cost_among(rows, row) for setting, row in rows.items()}


def _cost_among(rows: Mapping[Setting, Row], row: Row) -> Cost:
    plain = rows.get(replace(row.setting, remat=False), row)
    return *max(cost(row), cost(plain)), row.setting.remat


def cheapest(
    start: Iterable[Setting],
    fallbacks: Callable[[Setting], Iterable[Setting]],
    estimate: Callable[[Setting], Row | None],
    confirm: Callable[[Row], Row] | None,
) -> Row | None:
    """Finds the cheapest setting that fits, by the closed form and then by what confirms it.

    A search from the cheapest on: what does not fit is replaced by its fallbacks, none of which is cheaper, so that
    no more settings are worked out than it takes.

    Args:
        start: the settings to begin with.
        fallbacks: the next forms of a setting that hold less.
        estimate: the closed form's row; None for a setting that is refused.
        confirm: the same row with the compiled program's figures; None if there is no compiler. It is also asked of
            rows that do not fit by less than the closed form's error.

    Returns:
        The row; None where nothing fits.
    """
    rows: dict[Setting, Row] = {}
    queue: list[tuple[Cost, Row]] = []

    def add(settings: Iterable[Setting]) -> None:
        for setting in settings:
            row = None if setting in rows else estimate(setting)
            if row is not None:
                rows[setting] = row
                heapq.heappush(queue, (_cost_among(rows, row), row))

    add(start)
    while queue:
        _, row = heapq.heappop(queue)
        if confirm is not None and _may_fit(row):
            row = confirm(row)
        if row.fits:
            return row
        if not _never_fits(row):
            add(fallbacks(row.setting))
    return None


def _error(row: Row) -> float:
    return ESTIMATE_ERROR if row.estimated else CLOSED_FORM_ERROR


def _may_fit(row: Row) -> bool:
    # The pieces of offloaded state under way are counted as if they met the fullest moment, which they need not.
    passing = row.bytes_by_part["rest"] if row.setting.offload != "nothing" else 0
    return (1 - _error(row)) * (row.closed_form_peak - passing) <= row.cluster.usable and row.host_headroom >= 0


def _never_fits(row: Row) -> bool:
    """Whether it is too large whatever is done about activations: by what lasts, and by gradients."""
    parts = ("parameters", "optimizer_state", "gradients")
    return (
        row.host_headroom < 0 or sum(row.bytes_by_part[part] for part in parts) > (1 + _error(row)) * row.cluster.usable
    )


def recommend(
    chosen: Row | None,
    rows: Sequence[Row],
    *,
    base: Setting,
    stages: Sequence[int],
    remat: bool,
    on: Callable[[Setting, int], Row | None],
) -> Recommendation:
    """Says why a setting is the one to take, or what to change.

    Args:
        chosen: from `cheapest`.
        rows: all that were looked at.
        base: the run as given.
        stages: which were asked for.
        remat: whether rematerialisation of the model's blocks was among what was tried.
        on: the closed form's row of a setting on another number of GPUs, None if it is refused.
    """
    if chosen is None:
        return _nothing_fits(rows, base, stages, remat, on)
    setting = chosen.setting
    found = "the compiled program takes" if chosen.compiled else "by the closed form it takes"
    usable = format_bytes(chosen.cluster.usable)
    took = f"{found} {format_bytes(chosen.peak)} of {usable} usable"
    advice = [] if setting.offload == "nothing" else list(_more_gpus(rows, base, "without offloading", on))
    compiles = chosen.cluster.figures.target is not None
    if not chosen.compiled and chosen.headroom < CLOSED_FORM_ERROR * chosen.peak:
        settle = "compile it" if compiles else "leave more room"
        advice.append(f"That is closer than the closed form's error of some {CLOSED_FORM_ERROR:.0%}: {settle}.")
    elif not chosen.compiled and chosen.estimated and compiles:
        advice.append("Its memory is an estimate, which a compile confirms.")
    order = costs({row.setting: row for row in rows})
    missed = [row for row in rows if order[row.setting] < order[setting] and not row.fits]
    if missed:
        nearest = min(missed, key=_excess)
        closest = "; the closest," * (len(missed) > 1) or ":"
        name = f"{nearest.setting}{_batch(nearest.setting, base)}{',' * (len(missed) > 1)}"
        why = f"What is faster does not fit{closest} {name} lacks {nearest.shortfall}."
        if not nearest.compiled and 0 < -nearest.headroom < CLOSED_FORM_ERROR * nearest.peak:
            settle = "compile all stages to be sure" if compiles else "it may fit"
            advice.append(
                f"By how much {nearest.setting}{_batch(nearest.setting, base)} misses is within the closed form's "
                f"error of some {CLOSED_FORM_ERROR:.0%}: {settle}."
            )
    else:
        why = "Nothing that was asked for is faster."
    reason = f"Take {setting}{_batch(setting, base)}: {took}. {why}{_over_the_network(chosen, rows)}"
    return Recommendation(setting, reason, tuple(advice))


def _over_the_network(chosen: Row, rows: Sequence[Row]) -> str:
    """What the chosen setting sends to other nodes, beside what it would with other groups; empty without others."""
    alike = replace(chosen.setting, groups="none", group=1)
    others = [row for row in rows if replace(row.setting, groups="none", group=1) == alike and row is not chosen]
    others = [row for row in others if row.setting != chosen.setting]
    if not others or chosen.setting.stage != 3:
        return ""
    sent = lambda row: format_bytes(sum(row.wire.across.values()))
    took = lambda row: f"{row.setting} {sent(row)} ({format_bytes(row.peak)} of memory)"
    return f" Each GPU sends {sent(chosen)} to other nodes in a step, {' and '.join(map(took, others))}."


def _batch(setting: Setting, base: Setting) -> str:
    """How a setting departs from the run as given, apart from stage and offloading."""
    smaller = setting.micro_batch != base.micro_batch
    batch = f", {setting.micro_batch} a GPU x {setting.accumulation} micro-batches" if smaller else ""
    return batch + (", blocks rematerialised" if setting.remat else "")


def _nothing_fits(
    rows: Sequence[Row],
    base: Setting,
    stages: Sequence[int],
    remat: bool,
    on: Callable[[Setting, int], Row | None],
) -> Recommendation:
    if not rows:
        return Recommendation(None, "Every setting is refused; the reasons stand below the table.")
    best = min(rows, key=_excess)
    setting = f"{best.setting}{_batch(best.setting, base)}"
    if best.headroom >= 0:
        took = (
            f"{format_bytes(best.host_per_node)} of host memory per node, {format_bytes(-best.host_headroom)} too much"
        )
        return Recommendation(
            None,
            f"Nothing fits: even {setting} takes {took}.",
            (*_more_gpus(rows, base, "without offloading", on), "More nodes share what is in host memory."),
        )
    reason = f"Nothing fits: even {setting} takes {format_bytes(best.peak)}, {format_bytes(-best.headroom)} too much."
    advice = list(_more_gpus(rows, base, "at this batch size per GPU", on))
    if 3 not in stages:
        advice.append("Add stage 3 to --stages: it divides parameters too.")
    largest = max(("gathered_weights", "activations"), key=lambda part: best.bytes_by_part[part])
    alone = best.bytes_by_part[largest]
    if largest == "gathered_weights" and best.setting.stage == 3 and alone > best.cluster.usable / 2:
        advice.append(
            f"Gathered weights alone take {format_bytes(alone)}: a lower stage3_max_live_parameters gathers fewer "
            "layers at once; if that is a single one, only tensor parallelism would divide it, which this version "
            "does not have, and it takes a GPU with more memory."
        )
    elif alone > best.peak / 4:
        advice.append(f"Of that, {format_bytes(alone)} are activations: {_less_activations(best, remat)}.")
    return Recommendation(None, reason, tuple(advice))


def _excess(row: Row) -> float:
    """By what share of the memory there is, the GPU's or the host's, a row does not fit."""
    return max(-row.headroom / row.cluster.usable, -row.host_headroom / (row.cluster.host_memory or 1))


def _less_activations(best: Row, remat: bool) -> str:
    smaller = "" if best.setting.micro_batch == 1 else "a smaller train_micro_batch_size_per_gpu, "
    recompute = "" if remat else "rematerialised blocks (model.remat, or jzero.remat in the DeepSpeed part), "
    return f"{smaller}{recompute}shorter sequences or inputs of blocks in host memory (cpu_checkpointing) take less"


def _more_gpus(rows: Sequence[Row], base: Setting, how: str, on: Callable[[Setting, int], Row | None]) -> Iterator[str]:
    """How many GPUs would hold it: what the stage divides gets less with each, the rest stays."""
    needs = [(n, row) for row in rows if row.setting.offload == "nothing" and (n := _gpus_needed(row)) is not None]
    if not needs:
        return
    n_gpus, row = min(needs, key=lambda need: (need[0], cost(need[1])))
    if n_gpus <= row.cluster.n_gpus:
        return
    per_node, few = row.cluster.gpus_per_node, row.cluster.n_gpus
    for _ in range(4):  # what lives at the fullest moment changes with the number, so that `divided` is a first guess
        there = on(row.setting, n_gpus)
        if there is None:
            return
        if there.fits:
            fits = lambda nodes: (found := on(row.setting, nodes * per_node)) is not None and found.fits
            fewer = range(few // per_node + 1, n_gpus // per_node)
            n_gpus = per_node * (fewer.start + bisect.bisect_left(fewer, True, key=fits))
            yield (
                f"About {n_gpus:,} such GPUs would hold {row.setting}{_batch(row.setting, base)} {how}: "
                f"{format_bytes(row.divided)} of its memory are divided by their number."
            )
            return
        few, n_gpus = n_gpus, max(n_gpus + per_node, _gpus_needed(there) or 0)


def _gpus_needed(row: Row) -> int | None:
    left = row.cluster.usable - (row.closed_form_peak - row.divided)
    if not row.divided or left <= 0:
        return None
    per_node = row.cluster.gpus_per_node
    return math.ceil(row.cluster.n_gpus * row.divided / left / per_node) * per_node
